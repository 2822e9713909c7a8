import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from models.params import generic

import jaxattn as ja
from jaxattn.attention import pooling
from jaxattn.models import mlp, one_layer, reference
from jaxattn.models.sampling import sizes


def draw(corpus, dim=7, dtype=jnp.float64):
    params = generic(mlp.init, **sizes(corpus), dim=dim, dtype=dtype)
    return params.replace(p=8 * params.p, b=params.b + 0.1)


def reference_outputs(params, ids, mask):
    each = one_layer.Params(E=params.E, p=params.p, v=jnp.eye(params.E.shape[1], dtype=params.E.dtype))
    return jax.nn.relu(reference.outputs(each, ids, mask) @ params.W + params.b) @ params.v


@pytest.fixture(params=[0, pooling.DENSE_FACTOR], ids=["gathers", "dense"])
def way(request, monkeypatch):
    """Each method of averaging rows: dense products for small corpora, or gathers."""
    monkeypatch.setattr(pooling, "DENSE_FACTOR", request.param)
    pooling.pool.clear_cache()
    yield request.param
    pooling.pool.clear_cache()


@pytest.mark.parametrize(
    "corpus",
    ["ragged", *(pytest.param(x, marks=pytest.mark.more) for x in ("short draws", "long draws"))],
    indirect=True,
)
def test_logits_and_gradients_match_the_reference(x64, corpus, assert_matches_reference, way):
    assert pooling._is_dense(corpus) == bool(way)
    assert_matches_reference(mlp.outputs, reference_outputs, draw(corpus), corpus)


@pytest.mark.more
@pytest.mark.parametrize(("sequences", "vocab_size"), [(12, 40), (40, 12)])
def test_outputs_match_the_reference_for_any_corpus_size(
    x64, assert_matches_reference, sequences, vocab_size
):
    sizes = {"vocab_size": vocab_size, "relevant": 8, "length": 5, "sequences": sequences}
    corpus = ja.data.independent(jax.random.key(0), **sizes)
    assert_matches_reference(mlp.outputs, reference_outputs, draw(corpus), corpus)


@pytest.mark.more
def test_three_classes_match_the_reference(x64, ragged, assert_matches_reference, way):
    corpus = ragged(3)
    assert_matches_reference(mlp.outputs, reference_outputs, draw(corpus), corpus)


def test_derivative_of_pooling_matches_finite_differences(rng, x64, ragged, way):
    corpus = ragged(2)
    operands = rng.normal(size=corpus.vocab_size), rng.normal(size=(corpus.vocab_size, 3))
    check_grads(lambda a, M: pooling.pool(corpus, a, M), operands, order=1, modes=["rev"], rtol=1e-6)


@pytest.mark.parametrize(
    ("gathered", "held"),
    [
        pytest.param(gathered, held, marks=[] if first == second else pytest.mark.more)
        for first, gathered in enumerate((1, 500, 1 << 20))
        for second, held in enumerate((1, 200, 1 << 20))
    ],
)
def test_the_block_size_does_not_change_results(rng, x64, ragged, monkeypatch, cleared, gathered, held):
    monkeypatch.setattr(pooling, "GATHERED", gathered)
    monkeypatch.setattr(pooling, "HELD", held)
    corpus = ragged(2)
    bags = corpus.bags
    table = rng.normal(size=(corpus.vocab_size, 3))
    counts = bags.count.astype(jnp.float64)
    sums = pooling.weighted_sums(bags, counts, jnp.asarray(table))
    ids, mask = reference.padded_sequences(corpus)
    np.testing.assert_allclose(sums, (table[ids] * mask[:, :, None]).sum(axis=1), rtol=1e-12, atol=1e-12)


@pytest.mark.more
def test_vmap_matches_a_loop(x64, assert_vmap_matches_loop, way):
    assert_vmap_matches_loop(mlp.init, mlp.outputs)


def test_scores_around_1e3_yield_finite_results(ragged):
    corpus = ragged(2)
    params = draw(corpus, dtype=jnp.float32)
    params = params.replace(p=1e3 * params.p)
    assert jnp.abs(mlp.scores_and_values(params)[0]).max() > 1e3
    results = jax.jit(jax.value_and_grad(lambda x: mlp.outputs(x, corpus).sum()))(params)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(results))
    assert {x.dtype for x in jax.tree.leaves(results)} == {jnp.dtype("float32")}


@pytest.mark.more
def test_initial_parameters_match_the_one_layer_model_and_preserve_length():
    params = mlp.init(jax.random.key(3), vocab_size=20, dim=300, num_classes=4)
    plain = one_layer.init(jax.random.key(3), vocab_size=20, dim=300, num_classes=4)
    for name in ("E", "p", "v"):
        np.testing.assert_array_equal(getattr(params, name), getattr(plain, name))
    for mine, theirs in zip(mlp.scores_and_values(params), one_layer.scores_and_values(plain), strict=True):
        # Float32 products with sums in another order agree to about 1e-8 for entries of 0.1.
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose((params.W**2).sum() / 300, 1, atol=0.02)
    assert not params.b.any()
    larger = mlp.init(jax.random.key(3), vocab_size=30, dim=300, num_classes=4)
    np.testing.assert_array_equal(larger.E[:20], params.E)
    np.testing.assert_array_equal(larger.W, params.W)
