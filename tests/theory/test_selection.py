import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import (
    Scores,
    Selection,
    cosine,
    margin,
    one_minus_cosine,
    selection,
    selection_from_tokens,
)


@pytest.fixture
def corpus(rng):
    """One token, repeated tokens, and a bag that takes two rows, over 50 tokens."""
    lengths = [1, 2, 3, 5, 9, 20, 90]
    sequences = [[7, 7, 7], *(rng.integers(0, 48, length).tolist() for length in lengths)]
    return ja.data.from_sequences(sequences, [1, -1] * 4, vocab_size=50)


def best(tokens, scores, slack=0.0):
    highest = max(scores[s] for s in tokens)
    return [s for s in tokens if scores[s] >= highest - slack]


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_selection_matches_a_loop_for_any_scale_of_p(corpus, rng, loops, scale, shift):
    bags, selected = loops
    E, p = rng.normal(size=(50, 6)), rng.normal(size=6)
    scores = E @ p
    E += np.outer(np.where(np.arange(50) % 5 == 0, 4 - scores, 0), p) / (p @ p)
    E += shift * p / (p @ p)
    expected = [best(tokens, E @ p, 1e-9) for tokens in bags(corpus)]
    assert max(map(len, expected)) > 1
    assert min(map(len, expected)) == 1
    assert selected(corpus, selection(scale * p, Scores(E, corpus))) == expected


def test_zero_p_selects_every_token(corpus, rng, loops):
    bags, selected = loops
    chosen = selection(np.zeros(6), Scores(rng.normal(size=(50, 6)), corpus))
    assert selected(corpus, chosen) == bags(corpus)


@pytest.mark.parametrize(
    ("tie", "dtype", "ties", "differs"),
    [
        (None, np.float64, 0.9e-9, 1.1e-9),
        (None, np.float32, 0.8 * 64 * 2.0**-23, 1.5 * 64 * 2.0**-23),
        (0.1, np.float64, 0.09, 0.11),
        (0.0, np.float64, 0.0, 1e-15),
    ],
)
def test_tie_tolerance_is_relative_to_the_spread_of_all_scores(loops, tie, dtype, ties, differs):
    """Scores 1 and 1 - x in one sequence, 3 and -1 in two others: the spread is 4 for all of them."""
    _, selected = loops
    corpus = ja.data.from_sequences([[0, 1], [2], [3]], [1, -1, 1], vocab_size=6)
    p = np.ones(1, dtype)
    for share, expected in ((ties, [0, 1]), (differs, [0])):
        # The scores of the last two tokens are ignored, because these tokens do not occur.
        E = np.array([[1.0], [1 - 4 * share], [3.0], [-1.0], [-1e6], [1e6]])
        for scale in (1.0, 1e3):
            assert selected(corpus, selection(dtype(scale) * p, Scores(E, corpus), tie=tie)) == [
                expected,
                [2],
                [3],
            ]


def test_scores_outside_jit_are_computed_in_float64(loops):
    _, selected = loops
    corpus = ja.data.from_sequences([[0, 1]], [1], vocab_size=3)
    E = np.array([[1.0 + 1e-8], [1.0], [0.0]])
    assert not jax.config.jax_enable_x64
    assert selected(corpus, selection(np.ones(1), Scores(E, corpus), tie=1e-9)) == [[0]]


def test_selection_is_the_same_under_jit_and_vmap(x64, rng, instances):
    corpora = [instances[0].corpus, instances[-1].corpus]
    E, p = rng.normal(size=(2, 12, 6)), rng.normal(size=(2, 6))
    E[:, 4:9] = E[:, :1]
    both = jax.tree.map(lambda *x: jnp.stack(x), *corpora)
    inside = jax.jit(jax.vmap(selection))(jnp.asarray(p), Scores(jnp.asarray(E), both))
    for seed, corpus in enumerate(corpora):
        np.testing.assert_array_equal(inside.mask[seed], selection(p[seed], Scores(E[seed], corpus)).mask)
    assert (inside.mask.sum(axis=2) > 1).any()


def test_counts_and_tokens_match_loops(corpus, rng, loops):
    bags, selected = loops
    important = np.arange(50) % 3 == 0
    E = np.round(2 * rng.normal(size=(50, 1)))
    for chosen in (selection(np.ones(1), Scores(E, corpus)), selection_from_tokens(important, corpus)):
        lists = selected(corpus, chosen)
        np.testing.assert_array_equal(chosen.counts(corpus), [len(tokens) for tokens in lists])
        expected = [sum(important[s] for s in tokens) for tokens in lists]
        np.testing.assert_array_equal(chosen.important_counts(corpus, important), expected)
        expected = np.isin(np.arange(50), np.concatenate(lists))
        np.testing.assert_array_equal(chosen.tokens(corpus), expected)
    assert lists == [[s for s in tokens if important[s]] for tokens in bags(corpus)]


def test_a_selection_is_a_pytree_and_may_be_empty(corpus):
    nothing = selection_from_tokens(np.zeros(50, bool), corpus)
    assert isinstance(jax.tree.map(jnp.logical_not, nothing), Selection)
    np.testing.assert_array_equal(nothing.counts(corpus), 0)
    assert not nothing.tokens(corpus).any()


def test_invalid_input_is_rejected(corpus, rng):
    E, p = rng.normal(size=(50, 6)), rng.normal(size=6)
    with pytest.raises(ja.InputError, match="p contains NaN"):
        selection(np.where(np.arange(6) == 2, np.nan, p), Scores(E, corpus))
    with pytest.raises(ja.InputError, match="keys contains NaN"):
        selection(p, Scores(np.where(np.arange(6) == 2, np.inf, E), corpus))
    with pytest.raises(ja.InputError, match=r"keys: expected shape \(50, D\)"):
        selection(p, Scores(E[:49], corpus))
    with pytest.raises(ja.InputError, match=r"tie: must be at least 0, got -0\.1"):
        selection(p, Scores(E, corpus), tie=-0.1)
    with pytest.raises(ja.InputError, match="tie: must be at least 0, got nan"):
        selection(p, Scores(E, corpus), tie=np.nan)


def test_selects_matches_a_loop(corpus, rng, loops):
    """Rounded scores have many ties of important tokens, other tokens and whole sequences."""
    bags, selected = loops
    seen = set()
    for _ in range(30):
        important = rng.random(50) < 0.5
        chosen = selection(np.ones(1), Scores(np.round(0.7 * rng.normal(size=(50, 1))), corpus))
        selects, tied = map(np.asarray, chosen.selects(corpus, important))
        for k, (top, tokens) in enumerate(zip(selected(corpus, chosen), bags(corpus), strict=True)):
            kinds = {bool(important[s]) for s in top}
            assert selects[k] == (kinds == {True} and len(top) < len(tokens))
            assert tied[k] == (True in kinds and not selects[k])
            seen.add((len(top) == len(tokens), *sorted(kinds)))
    assert len(seen) == 6


@pytest.mark.parametrize("angle", [1e-100, 1e-9, 1e-3, 1.0, np.pi / 2, 3.0, np.pi])
def test_angles_are_accurate_for_any_dimension_and_norm(rng, angle):
    basis = np.linalg.qr(rng.normal(size=(8, 2)))[0].T
    # Only vectors along an axis can differ by angles below the rounding of their entries.
    plane = np.eye(2) if angle < 1e-3 else basis
    a, b = plane[0], np.cos(angle) * plane[0] + np.sin(angle) * plane[1]
    for scale_a, scale_b in ((1.0, 1.0), (3.0, 1e-200), (1e250, 7.0)):
        got = one_minus_cosine(scale_a * a, scale_b * b)
        np.testing.assert_allclose(got, 2 * np.sin(angle / 2) ** 2, rtol=1e-12)
        np.testing.assert_allclose(cosine(scale_a * a, scale_b * b), np.cos(angle), atol=1e-15)


def test_rounding_does_not_push_cosines_out_of_range(rng):
    a = rng.normal(size=(1000, 7))
    assert cosine(a, -3 * a).min() == -1
    assert cosine(a, 3 * a).max() == 1


def test_leading_axes_are_broadcast(rng):
    a, b = rng.normal(size=(4, 3)), rng.normal(size=3)
    expected = a @ b / (np.linalg.norm(a, axis=1) * np.linalg.norm(b))
    np.testing.assert_allclose(cosine(a, b), expected, rtol=1e-14)
    np.testing.assert_allclose(one_minus_cosine(b, a), 1 - expected, rtol=1e-14)


def test_zero_and_nan_vectors_have_nan_angles():
    a = np.array([1.0, 2.0])
    assert np.isnan(cosine(a, 0 * a))
    assert np.isnan(one_minus_cosine(np.array([np.nan, 1.0]), a))


def test_float32_vectors_outside_jit_are_computed_in_float64(rng):
    a = rng.normal(size=7).astype(np.float32)
    b = a + 1e-4 * rng.normal(size=7).astype(np.float32)
    expected = one_minus_cosine(a.astype(np.float64), b.astype(np.float64))
    assert 1e-10 < expected < 1e-7
    assert one_minus_cosine(jnp.asarray(a), jnp.asarray(b)) == expected


def test_angles_under_jit_and_vmap_match_single_calls(x64, rng):
    a, b = jnp.asarray(rng.normal(size=(2, 4, 3)))
    inside = jax.jit(jax.vmap(lambda a, b: (cosine(a, b), one_minus_cosine(a, b))))(a, b)
    np.testing.assert_allclose(inside, (cosine(a, b), one_minus_cosine(a, b)), rtol=1e-14)


def test_margin_is_the_smallest_gap_between_selected_and_other_tokens(x64, instances, loops):
    bags, selected = loops
    for corpus, E, _, chosen in instances[::5]:
        for p in E[:3]:
            gaps = [
                min(E[best] @ p) - max(E[rest] @ p)
                for tokens, best in zip(bags(corpus), selected(corpus, chosen), strict=True)
                if len(rest := [s for s in tokens if s not in best])
            ]
            got = jax.jit(margin)(5 * p, Scores(jnp.asarray(E), corpus), chosen)
            np.testing.assert_allclose(got, min(gaps) / np.linalg.norm(p), rtol=1e-13)


def test_margin_is_infinite_without_pairs_and_nan_for_zero_p(x64):
    corpus = ja.data.from_sequences([[0, 1]], [1], vocab_size=2)
    p, E = jnp.array([1.0, 0.0]), jnp.eye(2)
    everything = ja.theory.selection_from_tokens(np.ones(2, bool), corpus)
    assert jax.jit(margin)(p, Scores(E, corpus), everything) == np.inf
    first = ja.theory.selection_from_tokens(np.array([True, False]), corpus)
    assert np.isnan(jax.jit(margin)(0 * p, Scores(E, corpus), first))


def test_tokens_tie_up_to_the_public_tolerance(x64):
    """Scores 0 and 1 span the corpus; token 2 is below the top by twice or half of the tolerance."""
    for dtype in (np.float32, np.float64):
        tolerance = ja.theory.tie_tolerance(dtype)
        assert tolerance == (ja.theory.TIE if dtype == np.float64 else 64 * 2.0**-23)
        for share, ties in ((0.5, 2), (2.0, 1)):
            corpus = ja.data.from_sequences([[0, 1, 2]], [1], vocab_size=3)
            scores = np.array([0, 1, 1 - share * tolerance], dtype)
            assert ja.theory.selection_from_scores(scores, corpus).counts(corpus).tolist() == [ties]
