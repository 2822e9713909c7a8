from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaxattn as ja
from jaxattn.data.splits import Loaded, Splits
from jaxattn.dynamics import Descent, ExactFlow, JointFlow
from jaxattn.models import Mlp, OneLayer
from jaxattn.models.one_layer import Params
from jaxattn.probes import RelaxedDirection

SEQUENCES, LABELS = [[1, 4], [3, 5], [0, 6], [1, 6]], [1, 1, -1, 1]
# Token 3 points where token 1 does and is three times as long: only token 1 holds the head back. Token 5 is
# near it, so that telling the two apart by a margin would turn p.
E = np.eye(7)
E[3] = 3 * E[1]
E[5, 1] = 2.5


def conclude(history):
    corpus = ja.data.from_sequences(SEQUENCES, LABELS, vocab_size=7)
    loaded = Loaded(Splits(jax.tree.map(lambda x: x[None], corpus), None), False, list("0123456"))
    params = Params(jnp.asarray(E)[None], jnp.zeros((1, 7)), jnp.zeros((1, 7)))
    return RelaxedDirection().conclude(history[None], params, OneLayer(dim=7), loaded)


def shortest(rows, required):
    """Solve by a general method: the smallest p with rows · p ≥ required."""
    gaps = [
        {"type": "ineq", "fun": lambda p, a=a, b=b: p @ a - b} for a, b in zip(rows, required, strict=True)
    ]
    return minimize(lambda p: p @ p, np.ones(7), constraints=gaps, tol=1e-14).x


@pytest.mark.usefixtures("x64")
def test_p_and_v_against_directions_of_a_general_solver():
    """Pairs 1 > 4, 1 > 6, 0 > 6 and 3 > 5, of which the last one is in a sequence that is not tight."""
    rows = [E[a] - E[b] for a, b in [(1, 4), (1, 6), (0, 6), (3, 5)]]
    every, relaxed = shortest(rows, np.ones(4)), shortest(rows, [1, 1, 1, 0])
    head = shortest([E[1], -E[0]], np.ones(2))
    p = [np.linspace(-1, 1, 7), every + 0.3 * relaxed, 5 * relaxed + 0.01 * every]
    v = [np.ones(7), head + 0.1, 7 * head]
    path, end = conclude(np.stack([p, v], axis=1))

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
    # The angles of 1e-3 to the computed direction and of 1e-8, which its gap leaves open, add up.
    last = path["relaxed_one_minus_cosine"][:, -1]
    assert (end["relaxed_certified_distance"] >= last).all()
    np.testing.assert_allclose(end["relaxed_certified_distance"], last, rtol=1e-4)


@pytest.mark.usefixtures("x64")
def test_a_seed_that_is_not_finite_has_no_direction():
    path, end = conclude(np.full((3, 2, 7), np.nan))
    assert all(np.isnan(x).all() for x in (path | end).values())


def test_it_looks_where_p_and_v_move(applies):
    model, probe = OneLayer(dim=3), RelaxedDirection()
    logistic = SimpleNamespace(is_logistic=True)
    both = Descent(name="a", optimizer="sgd", step_size=1.0, steps=1, train=("v", "p"))
    assert applies(probe, model, logistic, both)
    assert applies(probe, model, logistic, JointFlow(name="b"))
    assert not applies(probe, model, logistic, ExactFlow(name="b"))
    assert not applies(probe, model, SimpleNamespace(is_logistic=False), both)
    assert not applies(probe, Mlp(dim=3), logistic, both)


def test_a_seed_with_nan_and_corpora_of_more_classes_have_no_direction():
    corpus = jax.tree.map(lambda x: x[None], ja.data.from_sequences(SEQUENCES, LABELS, vocab_size=7))
    for rows, classes in ((np.nan * E, 2), (E, 3)):
        params = Params(jnp.asarray(rows)[None], jnp.zeros((1, 7)), jnp.zeros((1, 7)))
        splits = Splits(corpus.replace(num_classes=classes), None)
        history = np.ones((1, 3, 2, 7))
        loaded = Loaded(splits, False, list("0123456"))
        for found in RelaxedDirection().conclude(history, params, OneLayer(dim=7), loaded):
            assert all(np.isnan(x).all() for x in found.values())
