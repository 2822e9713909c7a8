"""Derivatives of the max-margin direction, compared with new solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import (
    Scores,
    Selection,
    differentiable_direction,
    max_margin,
    max_margin_batch,
    selection_from_tokens,
)

pytestmark = pytest.mark.usefixtures("x64")


def jvp(E, moved, solution):
    return jax.jvp(lambda E: differentiable_direction(E, solution), (jnp.asarray(E),), (jnp.asarray(moved),))


def problem(rng, dim, tied=False):
    """Sequences of five of 12 tokens with one selected token of 0 .. 3, or two tied ones."""
    E = rng.normal(size=(12, dim))
    E[:4] += 3 * np.eye(dim)[0]
    if tied:
        E[1] = E[0] + 0.3 * rng.normal(size=dim)
    lists = [
        [int(k), *rng.choice(np.arange(4, 12), 4, replace=False).tolist()] for k in rng.integers(0, 4, 9)
    ]
    if tied:
        lists += [[0, 1, 5, 6], [1, 0, 7]]
    corpus = ja.data.from_sequences(
        lists, [1, -1] * (len(lists) // 2) + [1] * (len(lists) % 2), vocab_size=12
    )
    return E, corpus, selection_from_tokens(np.arange(12) < 4, corpus)


@pytest.mark.parametrize(
    ("dim", "tied"),
    [
        (6, True),
        (30, False),
        pytest.param(6, False, marks=pytest.mark.more),
        pytest.param(30, True, marks=pytest.mark.more),
    ],
)
@pytest.mark.more
def test_derivative_matches_finite_differences_of_recomputed_solutions(rng, dim, tied):
    E, corpus, chosen = problem(rng, dim, tied)
    solution = max_margin(Scores(E, corpus), chosen)
    assert solution.feasible
    assert (len(solution.ties) > 0) == tied
    np.testing.assert_allclose(differentiable_direction(E, solution), solution.p, rtol=1e-9, atol=1e-9)
    for _ in range(3):
        moved = rng.normal(size=E.shape)
        _, found = jax.jvp(
            lambda E: differentiable_direction(E, solution), (jnp.asarray(E),), (jnp.asarray(moved),)
        )
        h = 1e-6
        there, back = (max_margin(Scores(E + sign * h * moved, corpus), chosen) for sign in (1, -1))
        assert set(map(tuple, there.pairs)) == set(map(tuple, back.pairs))
        expected = (there.p - back.p) / (2 * h)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_linearly_dependent_pairs_are_supported(rng):
    """Both selected tokens outrank both others: four tight pairs, three of them independent."""
    E = np.eye(4, 6) + 0.05 * rng.normal(size=(4, 6))
    corpus = ja.data.from_sequences([[0, 2], [0, 3], [1, 2], [1, 3]], [1, -1, 1, -1], vocab_size=4)
    chosen = Selection(np.asarray(corpus.bags.index) < 2)
    solution = max_margin(Scores(E, corpus), chosen)
    every = np.array([[0, 2], [0, 3], [1, 2], [1, 3]])
    np.testing.assert_allclose((E[every[:, 0]] - E[every[:, 1]]) @ solution.p, 1)
    solution = solution.replace(pairs=every, multipliers=np.full(4, solution.p @ solution.p / 4))
    np.testing.assert_allclose(differentiable_direction(E, solution), solution.p, rtol=1e-9)
    moved = np.zeros_like(E)
    moved[0, 1] = 1.0
    found = jvp(E, moved, solution)[1]
    there, back = (max_margin(Scores(E + h * moved, corpus), chosen) for h in (1e-6, -1e-6))
    np.testing.assert_allclose(found, (there.p - back.p) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.more
def test_the_derivative_composes_with_a_gradient_step():
    data_key, model_key = jax.random.split(jax.random.key(3))
    corpus = ja.data.assumption1(data_key, vocab_size=12, relevant=4, length=4, sequences=20)
    params = ja.models.one_layer.init(model_key, vocab_size=12, dim=24, dtype=jnp.float64)
    chosen = selection_from_tokens(np.arange(12) < 4, corpus)

    def embeddings(step_size):
        return ja.dynamics.one_step(params, corpus, step_size=step_size).E

    solution = max_margin(Scores(embeddings(100.0), corpus), chosen)
    found = jax.jacobian(lambda x: differentiable_direction(embeddings(x), solution))(100.0)
    there, back = (max_margin(Scores(embeddings(x), corpus), chosen).p for x in (100.001, 99.999))
    np.testing.assert_allclose(found, (there - back) / 0.002, rtol=1e-5, atol=1e-9)


def test_invalid_solutions_are_rejected(rng):
    E, corpus, chosen = problem(rng, 30)
    solution = max_margin(Scores(E, corpus), chosen)
    batch = max_margin_batch(
        Scores(E[None], jax.tree.map(lambda x: np.asarray(x)[None], corpus)),
        jax.tree.map(lambda x: np.asarray(x)[None], chosen),
    )
    with pytest.raises(ja.InputError, match="solution: is a batch"):
        differentiable_direction(E, batch)
    with pytest.raises(ja.InputError, match="E: has 3 rows"):
        differentiable_direction(E[:3], solution)
    weaker = solution.replace(multipliers=solution.multipliers * 2)
    with pytest.raises(ja.InputError, match="some required margin is not 1"):
        differentiable_direction(E, weaker)
    apart = E.copy()
    apart[:4] = apart[4:8]
    with pytest.raises(ja.InputError, match="solution: has no direction"):
        differentiable_direction(apart, max_margin(Scores(apart, corpus), chosen))
