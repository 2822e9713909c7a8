from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.params import generic

from jaxattn.models import key_query, one_layer, reference
from jaxattn.models.sampling import sizes


def draw(corpus, weights="normal", dim=7):
    params = generic(key_query.init, **sizes(corpus), dim=dim, dtype=jnp.float64, weights=weights)
    W = params.W if weights == "normal" else jax.device_put(np.eye(dim))
    return params.replace(p=8 * params.p, W=W)


def reference_outputs(params, ids, mask):
    query = params.W @ params.p
    return reference.outputs(one_layer.Params(E=params.E, p=query, v=params.v), ids, mask)


@pytest.mark.parametrize(
    ("weights", "corpus"),
    [
        ("normal", "ragged"),
        ("identity", "long draws"),
        *(
            pytest.param(*case, marks=pytest.mark.more)
            for case in (
                ("identity", "ragged"),
                ("normal", "long draws"),
                ("identity", "short draws"),
                ("normal", "short draws"),
            )
        ),
    ],
    indirect=["corpus"],
)
def test_logits_and_gradients_match_the_reference(x64, corpus, assert_matches_reference, weights):
    assert_matches_reference(key_query.outputs, reference_outputs, draw(corpus, weights), corpus)


@pytest.mark.more
def test_three_classes_match_the_reference(x64, ragged, assert_matches_reference):
    corpus = ragged(3)
    assert_matches_reference(key_query.outputs, reference_outputs, draw(corpus), corpus)


def test_the_reference_matches_numpy(x64, ragged):
    corpus = ragged(2)
    params = draw(corpus)
    ids, mask = map(np.asarray, reference.padded_sequences(corpus))
    E, p, v, W = (np.asarray(x) for x in (params.E, params.p, params.v, params.W))
    outputs = jax.jit(reference_outputs)(params, ids, mask)
    for tokens, real, f in zip(ids, mask, outputs, strict=True):
        weight = np.array([np.exp(E[s] @ (W @ p)) for s in tokens[real]])
        expected = sum(q * (E[s] @ v) for q, s in zip(weight / weight.sum(), tokens[real], strict=True))
        np.testing.assert_allclose(f, expected, rtol=1e-10)


@pytest.mark.more
def test_vmap_matches_a_loop(x64, assert_vmap_matches_loop):
    assert_vmap_matches_loop(partial(key_query.init, weights="normal"), key_query.outputs)


def test_identity_weights_recover_the_one_layer_model(x64, ragged):
    corpus = ragged(3)
    params = key_query.init(jax.random.key(1), **sizes(corpus), dim=7, dtype=jnp.float64, weights="identity")
    plain = one_layer.Params(E=params.E, p=params.p, v=params.v)

    def outputs_scores_and_values(module):
        return jax.jit(lambda params: (module.outputs(params, corpus), *module.scores_and_values(params)))

    found, expected = (
        outputs_scores_and_values(key_query)(params),
        outputs_scores_and_values(one_layer)(plain),
    )
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13)


@pytest.mark.more
def test_initial_parameters_match_the_one_layer_model():
    plain = one_layer.init(jax.random.key(3), vocab_size=4, dim=300)
    for weights in ("identity", "normal"):
        small, large = (
            key_query.init(jax.random.key(3), vocab_size=size, dim=300, weights=weights) for size in (4, 9)
        )
        for name in ("E", "p", "v"):
            np.testing.assert_array_equal(getattr(small, name), getattr(plain, name))
        np.testing.assert_array_equal(small.E, large.E[:4])
        np.testing.assert_array_equal(small.W, large.W)
        np.testing.assert_allclose((small.W**2).sum() / 300, 1, atol=0.02)
