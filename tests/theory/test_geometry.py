import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import Scores, cosine, margin, one_minus_cosine


@pytest.mark.parametrize("angle", [1e-100, 1e-9, 1e-3, 1.0, np.pi / 2, 3.0, np.pi])
def test_angles_in_a_plane_are_right_at_any_size_and_for_vectors_of_any_length(rng, angle):
    basis = np.linalg.qr(rng.normal(size=(8, 2)))[0].T
    # Only vectors along an axis can differ by angles below the rounding of their entries.
    plane = np.eye(2) if angle < 1e-3 else basis
    a, b = plane[0], np.cos(angle) * plane[0] + np.sin(angle) * plane[1]
    for scale_a, scale_b in ((1.0, 1.0), (3.0, 1e-200), (1e250, 7.0)):
        got = one_minus_cosine(scale_a * a, scale_b * b)
        np.testing.assert_allclose(got, 2 * np.sin(angle / 2) ** 2, rtol=1e-12)
        np.testing.assert_allclose(cosine(scale_a * a, scale_b * b), np.cos(angle), atol=1e-15)


def test_no_rounding_leaves_the_range(rng):
    a = rng.normal(size=(1000, 7))
    assert cosine(a, -3 * a).min() == -1
    assert cosine(a, 3 * a).max() == 1


def test_vectors_in_rows_are_broadcast(rng):
    a, b = rng.normal(size=(4, 3)), rng.normal(size=3)
    expected = a @ b / (np.linalg.norm(a, axis=1) * np.linalg.norm(b))
    np.testing.assert_allclose(cosine(a, b), expected, rtol=1e-14)
    np.testing.assert_allclose(one_minus_cosine(b, a), 1 - expected, rtol=1e-14)


def test_a_vector_of_zeros_or_nan_has_no_angle():
    a = np.array([1.0, 2.0])
    assert np.isnan(cosine(a, 0 * a))
    assert np.isnan(one_minus_cosine(np.array([np.nan, 1.0]), a))


def test_single_precision_outside_of_jit_is_computed_in_double(rng):
    a = rng.normal(size=7).astype(np.float32)
    b = a + 1e-4 * rng.normal(size=7).astype(np.float32)
    expected = one_minus_cosine(a.astype(np.float64), b.astype(np.float64))
    assert 1e-10 < expected < 1e-7
    assert one_minus_cosine(jnp.asarray(a), jnp.asarray(b)) == expected


def test_inside_jit_and_vmap(x64, rng):
    a, b = jnp.asarray(rng.normal(size=(2, 4, 3)))
    inside = jax.jit(jax.vmap(lambda a, b: (cosine(a, b), one_minus_cosine(a, b))))(a, b)
    np.testing.assert_allclose(inside, (cosine(a, b), one_minus_cosine(a, b)), rtol=1e-14)


def test_margin_is_the_smallest_gap_between_selected_tokens_and_the_others(x64, instances, loops):
    bags, selected = loops
    for corpus, E, _, chosen in instances[::5]:
        for p in E[:3]:
            gaps = [
                min(E[best] @ p) - max(E[rest] @ p)
                for tokens, best in zip(bags(corpus), selected(corpus, chosen), strict=True)
                if len(rest := [s for s in tokens if s not in best])
            ]
            got = margin(jnp.asarray(5 * p), Scores(jnp.asarray(E), corpus), chosen)
            np.testing.assert_allclose(got, min(gaps) / np.linalg.norm(p), rtol=1e-13)


def test_margin_without_anything_to_separate_is_infinite_and_that_of_zero_is_not_defined(x64):
    corpus = ja.data.from_sequences([[0, 1]], [1], vocab_size=2)
    p, E = jnp.array([1.0, 0.0]), jnp.eye(2)
    everything = ja.theory.selection_of(np.ones(2, bool), corpus)
    assert margin(p, Scores(E, corpus), everything) == np.inf
    first = ja.theory.selection_of(np.array([True, False]), corpus)
    assert np.isnan(margin(0 * p, Scores(E, corpus), first))
