from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.params import generic

import jaxattn as ja
from jaxattn.data import ragged as layout
from jaxattn.models import multi_head, one_layer, reference
from jaxattn.models.sampling import sizes


def draw(corpus, heads=3, dim=7):
    params = generic(multi_head.init, **sizes(corpus), dim=dim, heads=heads, dtype=jnp.float64)
    return params.replace(p=8 * params.p)


def reference_outputs(params, ids, mask):
    heads = zip(params.p, params.v, strict=True)
    each = [reference.outputs(one_layer.Params(E=params.E, p=p, v=v), ids, mask) for p, v in heads]
    return sum(each) / len(each)


@pytest.mark.parametrize(
    "corpus",
    ["ragged", *(pytest.param(x, marks=pytest.mark.more) for x in ("short draws", "long draws"))],
    indirect=True,
)
def test_logits_and_gradients_match_the_reference(x64, corpus, assert_matches_reference):
    assert_matches_reference(multi_head.outputs, reference_outputs, draw(corpus), corpus)


@pytest.mark.more
def test_three_classes_match_the_reference(x64, ragged, assert_matches_reference):
    corpus = ragged(3)
    assert_matches_reference(multi_head.outputs, reference_outputs, draw(corpus, heads=2), corpus)


@pytest.mark.more
def test_large_corpus_is_supported_with_vmapped_heads_and_seeds(x64, ragged, monkeypatch):
    """Products with the count matrix match gathers, for batches of heads and seeds."""
    monkeypatch.setattr(layout, "LARGE", 1)
    corpus = ragged(2)
    assert corpus.bags.is_large
    ids, mask = reference.padded_sequences(corpus)
    both = jax.tree.map(lambda x: jnp.stack([x, 1.5 * x]), draw(corpus))

    def gradients(form, *data):
        return jax.jit(jax.vmap(jax.grad(lambda x: (form(x, *data) ** 2).sum())))(both)

    ours = gradients(multi_head.outputs, corpus)
    theirs = gradients(reference_outputs, ids, mask)
    for name in ("E", "p", "v"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-10, atol=1e-12)
    jax.clear_caches()


@pytest.mark.more
def test_vmap_matches_a_loop(x64, assert_vmap_matches_loop):
    assert_vmap_matches_loop(partial(multi_head.init, heads=2), multi_head.outputs)


def test_single_head_recovers_the_one_layer_model(x64, ragged):
    corpus = ragged(3)
    params = draw(corpus, heads=1)
    plain = one_layer.Params(E=params.E, p=params.p[0], v=params.v[0])
    found, expected = jax.jit(multi_head.outputs)(params, corpus), jax.jit(one_layer.outputs)(plain, corpus)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_scores_and_values_are_averages_over_heads(x64, ragged):
    params = draw(ragged(3))
    scores, values = jax.jit(multi_head.scores_and_values)(params)
    E, p, v = (np.asarray(x) for x in (params.E, params.p, params.v))
    np.testing.assert_allclose(scores, np.mean([E @ x for x in p], axis=0), rtol=1e-12)
    np.testing.assert_allclose(values, np.mean([E @ x for x in v], axis=0), rtol=1e-12)


@pytest.mark.more
def test_adding_heads_does_not_change_the_first_heads():
    plain = one_layer.init(jax.random.key(3), vocab_size=5, dim=200, num_classes=3)
    small, large = (
        multi_head.init(jax.random.key(3), vocab_size=V, dim=200, heads=H, num_classes=3)
        for V, H in ((5, 2), (8, 4))
    )
    np.testing.assert_array_equal(small.E, plain.E)
    np.testing.assert_array_equal(large.E[:5], plain.E)
    for name in ("p", "v"):
        np.testing.assert_array_equal(getattr(small, name)[0], getattr(plain, name))
        np.testing.assert_array_equal(getattr(large, name)[:2], getattr(small, name))
    assert large.v.shape == (4, 200, 3)
    np.testing.assert_allclose(jnp.linalg.norm(large.v, axis=1), 1, rtol=1e-5)
    directions = large.p / jnp.linalg.norm(large.p, axis=1, keepdims=True)
    assert jnp.abs(directions @ directions.T - jnp.eye(4)).max() < 0.3
    with pytest.raises(ja.InputError, match="heads: must be at least 1, got 0"):
        multi_head.init(jax.random.key(0), vocab_size=3, dim=2, heads=0)
