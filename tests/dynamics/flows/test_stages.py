"""Stages of the exact flow: units of length, and paths that are computed in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.shapes import DIM, LONGEST, POINTS, SEQUENCES, VOCAB, corpus_of

import jaxattn as ja
from jaxattn.dynamics.flows.exact_flow import begin_path, continue_path, ends_of
from jaxattn.dynamics.flows.stages import unit_keys

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture
def scores(rng):
    corpus = corpus_of(rng.integers(0, VOCAB, (SEQUENCES, LONGEST)), [1, -1] * (SEQUENCES // 2))
    return ja.theory.Scores(rng.normal(size=(VOCAB, DIM)), corpus, rng.normal(size=VOCAB))


@pytest.mark.parametrize("power", [-300, -1, 5, 300])
def test_keys_are_divided_by_a_power_of_two(scores, power):
    E, scale = jax.jit(unit_keys)(scores.keys * 2.0**power, scores.corpus)
    assert np.frexp(scale)[0] == 0.5
    assert 1 <= jnp.abs(E).max() < 2
    np.testing.assert_array_equal(E * scale, scores.keys * 2.0**power)


def test_path_in_two_parts_equals_the_path_in_one(scores):
    ends, p = ends_of(1e3, None, 0.0, 1e-6), jnp.zeros(DIM)
    whole = continue_path(scores, begin_path(scores, p, ends, POINTS), ends, 1000, POINTS - 1)
    first = continue_path(scores, begin_path(scores, p, ends, POINTS), ends, 1000, 7)
    assert int(first.integration.reached) == 8
    both = continue_path(scores, first, ends, 1000, POINTS - 1)
    for one, other in zip(jax.tree.leaves(both), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, other)
