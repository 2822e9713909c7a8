"""Large corpora, whose pairs with a frequent token are products of matrices; made small by a low limit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.attention import factored_kernel, frequent_tokens
from jaxattn.data import ragged as layout
from jaxattn.models import reference, two_layer, two_layer_weights


@pytest.fixture
def large(ragged, by_gram, monkeypatch):
    """Make a corpus that counts as large."""
    monkeypatch.setattr(layout, "LARGE", 1)

    def make(classes=2):
        corpus = ragged(classes)
        assert corpus.bags.factors is not None
        return corpus

    return make


MORE = pytest.mark.more
MODELS = {
    "without weights": (two_layer, two_layer.init),
    "with weights": (two_layer_weights, partial(two_layer_weights.init, weights="normal")),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]


def draw(init, corpus, dtype=jnp.float64, scale=2.0):
    classes = corpus.num_classes
    params = init(jax.random.key(1), vocab_size=corpus.vocab_size, dim=7, num_classes=classes, dtype=dtype)
    return params.replace(E=scale * params.E, p=8 * params.p)


def scores(params):
    keys = params.E @ params.W1 if isinstance(params, two_layer_weights.Params) else params.E
    return keys @ params.E.T, not isinstance(params, two_layer_weights.Params)


def dense_counts(corpus):
    counts = np.zeros((corpus.num_examples, corpus.vocab_size))
    bags = jax.tree.map(np.asarray, corpus.bags)
    np.add.at(counts, (np.minimum(bags.owner, len(counts) - 1)[:, None], bags.index), bags.count)
    return counts


@pytest.mark.parametrize(
    ("size", "symmetric"),
    [(9, True), (81, False), *(pytest.param(*case, marks=MORE) for case in ((9, False), (81, True)))],
)
def test_sums_over_pairs_and_their_derivatives_are_those_of_dense_matrices(x64, rng, large, size, symmetric):
    corpus = large()
    counts = dense_counts(corpus)
    kernel, columns = rng.normal(size=(81, 81)), tuple(rng.normal(size=(3, 81)))
    if symmetric:
        kernel = kernel + kernel.T
    bags = jax.tree.map(np.asarray, corpus.bags)
    cotangents = tuple(np.where(bags.count > 0, rng.normal(size=bags.index.shape), 0) for _ in columns)

    def sums(kernel, columns):
        every = [counts @ (kernel * y).T for y in columns]
        return tuple(jnp.where(bags.count > 0, x[bags.owner[:, None], bags.index], 0) for x in every)

    expected, vjp = jax.vjp(sums, jnp.asarray(kernel), tuple(map(jnp.asarray, columns)))
    d_kernel, d_columns = vjp(cotangents)
    frequent = jax.jit(partial(frequent_tokens.most_frequent, size=size, dtype=jnp.float64))(corpus)
    args = (corpus, frequent, jnp.asarray(kernel), tuple(map(jnp.asarray, columns)))
    mine = jax.jit(partial(frequent_tokens.forward, symmetric=symmetric))(*args)
    for x, y in zip(mine, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)
    d_mine, d_y = jax.jit(partial(frequent_tokens.backward, symmetric=symmetric))(*args, cotangents)
    if symmetric:
        d_mine, d_kernel = d_mine + d_mine.T, d_kernel + d_kernel.T
    np.testing.assert_allclose(d_mine, d_kernel, rtol=1e-10, atol=1e-10)
    for x, y in zip(d_y, d_columns, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def test_frequent_tokens_are_those_of_most_sequences(large):
    corpus = large()
    counts = dense_counts(corpus)
    frequent = frequent_tokens.most_frequent(corpus, 9, jnp.float32)
    holders = (counts > 0).sum(axis=0)
    assert sorted(holders[frequent.tokens]) == sorted(holders)[-9:]
    np.testing.assert_array_equal(frequent.counts, counts[:, frequent.tokens])
    rare = np.asarray(frequent.rare.index)[np.asarray(frequent.rare.count) > 0]
    assert not set(rare) & set(np.asarray(frequent.tokens).tolist())
    assert np.asarray(frequent.rare.count).sum() + counts[:, frequent.tokens].sum() == counts.sum()


@pytest.mark.parametrize(
    ("model", "classes", "residual"),
    [
        ("without weights", 2, False),
        ("with weights", 3, True),
        pytest.param("without weights", 3, True, marks=MORE),
        pytest.param("with weights", 2, False, marks=MORE),
    ],
    indirect=["model"],
)
def test_safe_scores_equal_the_textbook(x64, large, assert_equals_textbook, model, classes, residual):
    module, init = model
    corpus = large(classes)
    params = draw(init, corpus)
    assert factored_kernel.is_safe(*scores(params))
    assert_equals_textbook(
        partial(module.logits, residual=residual),
        partial(reference.two_layer_logits, residual=residual),
        params,
        corpus,
    )


@pytest.mark.parametrize(
    "model", [pytest.param("without weights", marks=MORE), "with weights"], indirect=True
)
def test_wide_scores_equal_the_textbook(x64, large, assert_equals_textbook, model):
    module, init = model
    corpus = large()
    params = draw(init, corpus, scale=30.0)
    assert not factored_kernel.is_safe(*scores(params))
    # Products of size 1e4 in the exponent are rounded to 1e-12 in either form, and p multiplies that by 1e2.
    assert_equals_textbook(module.logits, reference.two_layer_logits, params, corpus, rtol=1e-7, atol=1e-7)


def test_scores_that_are_barely_safe_lose_nothing(x64, large):
    """|E_s|² from 0 to 126 in float32, against the same numbers in float64: only rounding differs."""
    corpus = large()
    E = jax.random.normal(jax.random.key(3), (81, 7), jnp.float64)
    E = E / jnp.linalg.norm(E, axis=1, keepdims=True) * jnp.linspace(0, jnp.sqrt(126.0), 81)[:, None]
    p, v = jax.random.normal(jax.random.key(4), (2, 7), jnp.float64) / 10
    wide = two_layer.Params(E=E, p=p, v=v)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), wide)
    assert factored_kernel.is_safe(single.E @ single.E.T, True)
    gradient = jax.jit(jax.grad(lambda x: (two_layer.logits(x, corpus) ** 2).sum()))
    for mine, exact in zip(*(jax.tree.leaves(gradient(x)) for x in (single, wide)), strict=True):
        assert mine.dtype == jnp.float32
        # Scores of size 126 are rounded to 1e-5.
        np.testing.assert_allclose(mine, exact, rtol=1e-4, atol=1e-4 * float(jnp.abs(exact).max()))


@pytest.mark.parametrize("scale", [2.0, np.nan])
def test_what_is_no_number_is_not_safe(scale):
    assert bool(factored_kernel.is_safe(scale * jnp.eye(3), True)) is not np.isnan(scale)


@pytest.mark.parametrize(
    "model", [pytest.param("without weights", marks=MORE), "with weights"], indirect=True
)
def test_vmapped_equals_looped_whatever_the_spread_of_each_member(x64, large, model):
    module, init = model
    corpus = large()
    batch = [draw(init, corpus, scale=scale) for scale in (1.0, 30.0, 2.0)]
    assert [bool(factored_kernel.is_safe(*scores(x))) for x in batch] == [True, False, True]
    gradient = jax.jit(jax.grad(lambda x: ja.losses.classification(module.logits(x, corpus), corpus.targets)))
    vmapped = jax.vmap(gradient)(jax.tree.map(lambda *x: jnp.stack(x), *batch))
    for member, params in enumerate(batch):
        for mine, theirs in zip(jax.tree.leaves(vmapped), jax.tree.leaves(gradient(params)), strict=True):
            np.testing.assert_allclose(mine[member], theirs, rtol=1e-9, atol=1e-12)


def test_a_rare_token_may_occur_any_number_of_times_in_a_sequence(x64, rng, by_gram, monkeypatch):
    monkeypatch.setattr(layout, "LARGE", 1)
    bags = [{0: 1, 1: 2, 2: 1}, {0: 3, 1: 1, 2: 1}, {0: 1, 1: 1, 5: 70_000}, {1: 5, 2: 9, 4: 2}]
    sequences = [np.repeat(list(bag), list(bag.values())).tolist() for bag in bags]
    corpus = ja.data.from_sequences(sequences, [1, -1, 1, -1], vocab_size=6)
    params = two_layer.Params(E=rng.normal(size=(6, 3)), p=rng.normal(size=3), v=rng.normal(size=3))
    scores, values = params.E @ params.p, params.E @ params.v
    assert 5 not in frequent_tokens.most_frequent(corpus, 3, jnp.float64).tokens

    def textbook(bag):
        tokens, count = np.array(list(bag)), np.array(list(bag.values()))
        weight = count * np.exp(params.E[tokens] @ params.E[tokens].T)
        weight /= weight.sum(axis=1, keepdims=True)
        attention = count * np.exp(weight @ scores[tokens])
        return attention @ (weight @ values[tokens]) / attention.sum()

    logits = two_layer.logits(jax.tree.map(jnp.asarray, params), corpus, residual=False)
    np.testing.assert_allclose(logits, [textbook(bag) for bag in bags], rtol=1e-12)
