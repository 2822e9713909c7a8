from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.claims import joint, limits, settings
from jaxattn.claims.flow import Flows, distance, growth, relevant_counts, round_up
from jaxattn.claims.one_step import errors_of, one_step_errors
from jaxattn.claims.rows import FAILS, HOLDS
from jaxattn.claims.settings import in_span
from jaxattn.models.one_layer import Params


@pytest.fixture(scope="module")
def flows(plan, seeds):
    """The flows in the base setting and around it."""
    return Flows(range(seeds), plan.until_norm)


@pytest.mark.parametrize(("dim", "classes"), [(5, 2), (14, 3), (40, 2), (40, 3)])
@pytest.mark.usefixtures("x64")
def test_coordinates_of_the_span_keep_all_inner_products(dim, classes, rng):
    heads = (dim,) if classes == 2 else (dim, classes)
    params = Params(*(jnp.asarray(rng.normal(size=shape)) for shape in ((12, dim), (dim,), heads)))
    short = in_span(params)

    def products(p):
        rows = np.concatenate([p.E, p.p[None], np.atleast_2d(p.v.T)])
        return rows @ rows.T

    np.testing.assert_allclose(products(short), products(params), rtol=1e-12, atol=1e-12)
    assert short.v.ndim == params.v.ndim


def test_one_step_errors_are_those_of_the_embeddings_themselves(plan, seeds):
    setting = replace(plan.law, dim=64)
    found = one_step_errors(setting, range(seeds))
    corpora, keys = settings.initial(setting, range(seeds)).corpora, settings.seed_keys(range(seeds))[1]

    @jax.jit
    def direct(key, corpus):
        return errors_of(ja.models.one_layer.init(key, vocab_size=12, dim=64, dtype=jnp.float64), corpus)

    with jax.enable_x64(True):
        for seed in (0, 7):
            corpus = jax.tree.map(lambda x, seed=seed: x[seed], corpora)
            np.testing.assert_allclose(found[:, seed], direct(keys[seed], corpus), rtol=1e-10)


def test_the_limit_is_the_max_margin_direction(plan, flows):
    share, power = limits.converges(flows, plan.base)
    assert share.hits == share.seeds == 40
    assert share.verdict == HOLDS
    assert abs(power.value + 2) < 0.05


def test_a_wrong_direction_fails(plan, flows):
    limit = flows(plan.base)
    wrong = Flows(flows.seeds, plan.until_norm)
    noise = np.random.default_rng(0).normal(size=limit.margin.p.shape)
    turned = limit.margin.p + 1e-3 * np.linalg.norm(limit.margin.p, axis=1, keepdims=True) * noise
    wrong._known[plan.base] = limit._replace(margin=replace(limit.margin, p=turned))
    assert [row.verdict for row in limits.converges(wrong, plan.base)] == [FAILS, FAILS]


def test_selection_of_other_tokens_fails(plan, flows):
    limit = flows(plan.base)
    wrong = Flows(flows.seeds, plan.until_norm)
    present = limit.problems.corpora.bags.count > 0
    others = replace(limit.selection, mask=present & ~limit.selection.mask)
    wrong._known[plan.base] = limit._replace(selection=others)
    assert limits.selects(wrong, plan.base)[0].verdict == FAILS
    assert limits.selects(flows, plan.base)[0].verdict == HOLDS


def test_growth_tells_infinity_from_a_finite_stationary_point(plan, flows):
    np.testing.assert_allclose(growth(flows(plan.base)), 1, atol=1e-3)
    limit = flows(plan.base)
    resting = Flows(flows.seeds, plan.until_norm)
    # Near a finite stationary point the gradient vanishes like e^(-λ t), far below 1 / t.
    vanishing = replace(limit.path, log_gradient_norm=limit.path.log_gradient_norm - 10)
    resting._known[plan.base] = limit._replace(path=vanishing)
    assert [row.verdict for row in limits.unbounded(resting, plan.base)][:2] == [FAILS, FAILS]
    assert {row.verdict for row in limits.unbounded(flows, plan.base)} == {HOLDS}


def test_distance_bounds_the_angle_to_every_direction_that_the_gap_leaves(plan, flows):
    limit = flows(plan.base)
    p = np.asarray(limit.path.p[:, -1])
    across = np.random.default_rng(0).normal(size=p.shape)
    across -= (across * p).sum(1, keepdims=True) * p / (p**2).sum(1, keepdims=True)
    across *= np.linalg.norm(p, axis=1, keepdims=True) / np.linalg.norm(across, axis=1, keepdims=True)

    def at(angle):
        return np.cos(angle) * p + np.sin(angle) * across

    found, off = 0.3, 0.2
    gap = np.full(len(p), 1 - np.cos(off) ** 2)
    bound = distance(limit, replace(limit.margin, p=at(found), duality_gap=gap))
    np.testing.assert_allclose(bound, 1 - np.cos(found + off), rtol=1e-9)
    assert np.isnan(distance(limit, replace(limit.margin, p=np.nan * p))).all()


def test_relevant_counts_equal_a_loop(plan, flows):
    limit = flows(plan.base)
    selected, present = relevant_counts(limit, 4)
    corpus = jax.tree.map(lambda x: np.asarray(x[3]), limit.problems.corpora)
    mask = np.asarray(limit.selection.mask[3])
    for sequence, (index, count, chosen) in enumerate(
        zip(corpus.bags.index, corpus.bags.count, mask, strict=True)
    ):
        relevant = (count > 0) & (index < 4)
        assert present[3, sequence] == relevant.sum()
        assert selected[3, sequence] == (relevant & chosen).sum()


def test_joint_training_moves_p_and_v_and_not_E(plan, flows):
    problems = flows(plan.base).problems
    half, end = joint.train(problems, 7)
    np.testing.assert_array_equal(end.E, problems.params.E)
    for params, steps in ((half, 4), (end, 7)):
        moved = [np.linalg.norm(getattr(params, x) - getattr(problems.params, x), axis=1) for x in "pv"]
        assert (np.hypot(*moved) <= steps * joint.STEP * (1 + 1e-9)).all()
        assert (np.minimum(*moved) > 0).all()


@pytest.mark.usefixtures("x64")
def test_sequences_where_the_head_is_tight():
    """Token 3 points where token 1 does and is three times as long: only token 1 holds the head back."""
    sequences, labels = [[1, 4], [3, 5], [0, 6], [1, 6]], [1, 1, -1, 1]
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=7)
    E = np.eye(7)
    E[3] = 3 * E[1]
    found = joint._tight_direction(E, corpus, 4)
    sub = ja.data.from_sequences([[1, 4], [0, 6], [1, 6]], [1, -1, 1], vocab_size=7)
    expected = ja.theory.max_margin(E, sub, ja.theory.selection_of(np.arange(7) < 4, sub))
    np.testing.assert_allclose(found.p, expected.p, atol=1e-9)


def test_bounds_are_rounded_up():
    assert [round_up(x) for x in (0.0, 1e-9, 1.01e-9, 9.2e-5, 0.3, 0.31)] == [
        "0",
        "1e-9",
        "2e-9",
        "1e-4",
        "3e-1",
        "4e-1",
    ]
