"""Distances of parameters to the max-margin directions of the final selection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaxattn as ja
from jaxattn.lab.probes.directions import _facts, certified_distance
from jaxattn.losses import Logistic
from jaxattn.theory.solution import unsolved

pytestmark = pytest.mark.usefixtures("x64")


def test_certified_distance_is_an_upper_bound():
    found, off = np.array([0.3, 1e-5, 0.2]), np.array([0.2, 3e-6, 0.0])
    # 1 - cos without cancellation, 2 sin²(x/2); a gap of 1 - cos² leaves an angle of that cosine open.
    bound = certified_distance(2 * np.sin(found / 2) ** 2, np.sin(off) ** 2)
    np.testing.assert_allclose(bound, 2 * np.sin((found + off) / 2) ** 2, rtol=1e-9)
    assert np.isnan(certified_distance(np.array([np.nan]), np.array([0.1]))).all()
    np.testing.assert_array_equal(certified_distance(np.array([2.0]), np.array([0.5])), [2.0])


def test_undecided_separability_is_recorded_as_nan():
    answers = [
        unsolved(status, 3)
        for status in (ja.theory.Status.NO_PAIRS, ja.theory.Status.INFEASIBLE, ja.theory.Status.UNDECIDED)
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *answers)
    _, feasible, *_ = _facts(stacked, np.zeros(3))
    np.testing.assert_array_equal(feasible, [1, 0, np.nan])


SEQUENCES, LABELS = [[1, 4], [3, 5], [0, 6], [1, 6]], [1, 1, -1, 1]
# Token 3 has the direction of token 1 and three times its length, so only token 1 constrains the head. Token
# 5 is close to it, so a margin between the two would change the direction of p.
E = np.eye(7)
E[3] = 3 * E[1]
E[5, 1] = 2.5


def conclude_relaxed(history):
    corpus = ja.data.from_sequences(SEQUENCES, LABELS, vocab_size=7)
    loaded = ja.data.Loaded(
        ja.data.Splits(jax.tree.map(lambda x: x[None], corpus), None), False, list("0123456")
    )
    params = ja.models.one_layer.Params(jnp.asarray(E)[None], jnp.zeros((1, 7)), jnp.zeros((1, 7)))
    return ja.probes.RelaxedDirection().conclude(history[None], params, ja.models.OneLayer(dim=7), loaded)


def shortest(rows, required):
    """Compute the smallest p with rows · p ≥ required by a general solver."""
    gaps = [
        {"type": "ineq", "fun": lambda p, a=a, b=b: p @ a - b} for a, b in zip(rows, required, strict=True)
    ]
    return minimize(lambda p: p @ p, np.ones(7), constraints=gaps, tol=1e-14).x


def test_relaxed_direction_matches_a_general_solver():
    """The pairs are 1 > 4, 1 > 6, 0 > 6 and 3 > 5; the last one is in a sequence that is not tight."""
    rows = [E[a] - E[b] for a, b in [(1, 4), (1, 6), (0, 6), (3, 5)]]
    every, relaxed = shortest(rows, np.ones(4)), shortest(rows, [1, 1, 1, 0])
    head = shortest([E[1], -E[0]], np.ones(2))
    p = [np.linspace(-1, 1, 7), every + 0.3 * relaxed, 5 * relaxed + 0.01 * every]
    v = [np.ones(7), head + 0.1, 7 * head]
    path, end = conclude_relaxed(np.stack([p, v], axis=1))

    def away(a, b):
        return 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    for name, x, to in (
        ("relaxed_one_minus_cosine", p, relaxed),
        ("unrelaxed_one_minus_cosine", p, every),
        ("head_one_minus_cosine", v, head),
    ):
        np.testing.assert_allclose(path[name][0], [away(one, to) for one in x], atol=1e-6, err_msg=name)
    assert away(relaxed, every) > 1e-2
    assert end["relaxed_support"] == 0.75
    assert end["relaxed_feasible"] == 1
    assert end["relaxed_duality_gap"] <= 1e-10
    # The angle of 1e-3 to the computed direction and that of 1e-8 allowed by its gap add up.
    last = path["relaxed_one_minus_cosine"][:, -1]
    assert (end["relaxed_certified_distance"] >= last).all()
    np.testing.assert_allclose(end["relaxed_certified_distance"], last, rtol=1e-4)


def test_direction_metrics_of_a_nonfinite_seed_are_nan():
    path, end = conclude_relaxed(np.full((3, 2, 7), np.nan))
    assert all(np.isnan(x).all() for x in (path | end).values())


def test_relaxed_direction_requires_phases_that_train_p_and_v(applies):
    model, probe = ja.models.OneLayer(dim=3), ja.probes.RelaxedDirection()
    logistic = Logistic()
    both = ja.dynamics.Descent(name="a", optimizer="sgd", step_size=1.0, steps=1, train=("v", "p"))
    assert applies(probe, model, logistic, both)
    assert applies(probe, model, logistic, ja.dynamics.JointFlow(name="b"))
    assert not applies(probe, model, logistic, ja.dynamics.ExactFlow(name="b"))
    assert not applies(probe, model, Logistic(smoothing=0.1), both)
    assert not applies(probe, ja.models.Mlp(dim=3), logistic, both)


def test_direction_metrics_are_nan_for_nan_embeddings_or_three_classes():
    corpus = jax.tree.map(lambda x: x[None], ja.data.from_sequences(SEQUENCES, LABELS, vocab_size=7))
    for rows, classes in ((np.nan * E, 2), (E, 3)):
        params = ja.models.one_layer.Params(jnp.asarray(rows)[None], jnp.zeros((1, 7)), jnp.zeros((1, 7)))
        splits = ja.data.Splits(corpus.replace(num_classes=classes), None)
        history = np.ones((1, 3, 2, 7))
        loaded = ja.data.Loaded(splits, False, list("0123456"))
        for found in ja.probes.RelaxedDirection().conclude(
            history, params, ja.models.OneLayer(dim=7), loaded
        ):
            assert all(np.isnan(x).all() for x in found.values())


def two_seeds():
    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = ja.data.independent(data_key, vocab_size=12, relevant=6, length=5, sequences=60)
        params = ja.models.one_layer.init(model_key, vocab_size=12, dim=24, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=100.0), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 2))


def conclude_limit(history, params, corpora):
    loaded = ja.data.Loaded(ja.data.Splits(corpora), False, list("abcdefghijkl"))
    return ja.probes.FlowLimit().conclude(history, params, ja.models.OneLayer(dim=3), loaded)


@pytest.mark.more
def test_flow_limit_matches_the_certificate_of_the_path():
    params, corpora = two_seeds()
    path = ja.dynamics.exact_flow(ja.theory.scores.one_layer(params, corpora), params.p, points=8)
    history = np.array(path.p)
    on_the_way, end = conclude_limit(history, params, corpora)
    for seed in range(2):
        own, corpus, chosen = jax.tree.map(lambda x, seed=seed: x[seed], (params, corpora, path.selection))
        expected = ja.theory.certify_limit(ja.theory.scores.one_layer(own, corpus), history[seed, -1], chosen)
        away = ja.theory.one_minus_cosine(history[seed], expected.direction.p)
        np.testing.assert_allclose(on_the_way["limit_one_minus_cosine"][seed], away, atol=1e-12)
        assert end["limit_feasible"][seed] == expected.holds
        assert end["limit_certified_distance"][seed] >= away[-1]
        assert end["tied_sequences"][seed] == (np.asarray(chosen.counts(corpus)) > 1).mean()
    assert end["tied_sequences"].max() > 0
    history[1] = np.nan
    on_the_way, end = conclude_limit(history, params, corpora)
    assert np.isnan(on_the_way["limit_one_minus_cosine"]).any(axis=1).tolist() == [False, True]
    assert np.isnan(end["limit_feasible"]).tolist() == [False, True]


def test_flow_limit_requires_the_logistic_loss_and_training_only_p(applies):
    model, loss, probe = ja.models.OneLayer(dim=3), ja.losses.Classification(), ja.probes.FlowLimit()
    assert applies(probe, model, loss, ja.dynamics.ExactFlow(name="a"))
    assert not applies(probe, model, loss, ja.dynamics.JointFlow(name="b"))
    assert not applies(probe, model, ja.losses.Classification(smoothing=0.1), ja.dynamics.ExactFlow(name="a"))
    assert not applies(probe, ja.models.Mlp(dim=3), loss, ja.dynamics.ExactFlow(name="a"))


@pytest.mark.more
def test_nan_seed_does_not_affect_other_seeds():
    params, corpora = two_seeds()
    history = np.asarray(params.p)[:, None] * np.geomspace(1, 1e4, 8)[:, None]
    expected = conclude_limit(history, params, corpora)
    broken = params.replace(E=params.E.at[0, 3].set(jnp.nan))
    found = conclude_limit(history, broken, corpora)
    for before, after in zip(expected, found, strict=True):
        for name in before:
            assert np.isnan(after[name][0]).all()
            np.testing.assert_array_equal(after[name][1], before[name][1])


@pytest.mark.more
def test_wrong_number_of_heads_raises():
    params, corpora = two_seeds()
    with pytest.raises(ja.InputError, match=r"scores.values: expected shape \(12, 3\), .* got shape \(12,\)"):
        conclude_limit(np.zeros((2, 4, 24)), params, corpora.replace(num_classes=3))
