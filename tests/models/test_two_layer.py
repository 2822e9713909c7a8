import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jaxattn as ja
from jaxattn.attention import self_attention
from jaxattn.data import Corpus, from_draws
from jaxattn.models import reference, two_layer, two_layer_weights
from jaxattn.models.sampling import sizes


@pytest.fixture(params=["without weights", "with weights"])
def model(request):
    """A two-layer model with its `init` function; weights are not the identity."""
    if request.param == "with weights":
        return two_layer_weights, partial(two_layer_weights.init, weights="normal")
    return two_layer, two_layer.init


# For tests that do not depend on the model.
ONE_MODEL = pytest.mark.parametrize(
    "model", [pytest.param("without weights", marks=pytest.mark.more), "with weights"], indirect=True
)

# Sequences of a minibatch, from a corpus of twelve.
FEW, MANY = (3, 0, 7, 11), tuple(range(12))
SUMS = [("with weights", "gpu", "ragged")]


def draw(init, corpus, dim=7, query=8, dtype=jnp.float64):
    params = init(jax.random.key(1), **sizes(corpus), dim=dim, dtype=dtype)
    return params.replace(E=2 * params.E, p=query * params.p)


@pytest.mark.parametrize(
    ("model", "residual", "corpus"),
    [
        pytest.param(*case, marks=[] if number == 9 else pytest.mark.more)
        for number, case in enumerate(
            itertools.product(
                ("without weights", "with weights"), (False, True), ("ragged", "short draws", "long draws")
            )
        )
    ],
    indirect=["model", "corpus"],
)
def test_logits_and_gradients_match_the_reference(x64, corpus, assert_matches_reference, model, residual):
    module, init = model
    assert_matches_reference(
        partial(module.outputs, residual=residual),
        partial(reference.two_layer_outputs, residual=residual),
        draw(init, corpus),
        corpus,
    )


@pytest.mark.more
@pytest.mark.parametrize("residual", [False, True])
def test_three_classes_match_the_reference(x64, ragged, assert_matches_reference, model, residual):
    module, init = model
    corpus = ragged(3)
    assert_matches_reference(
        partial(module.outputs, residual=residual),
        partial(reference.two_layer_outputs, residual=residual),
        draw(init, corpus),
        corpus,
    )


@pytest.mark.more
@pytest.mark.parametrize("numbers", [1, 1 << 13])
def test_the_block_size_does_not_change_results(
    x64, ragged, assert_matches_reference, model, cleared, monkeypatch, numbers
):
    """Use blocks of one sequence and of a few; in other tests most blocks contain all sequences."""
    module, init = model
    corpus = ragged(2)
    monkeypatch.setattr(self_attention, "NUMBERS", numbers)
    assert not self_attention.is_single_block(corpus.bags, 7)
    assert_matches_reference(module.outputs, reference.two_layer_outputs, draw(init, corpus), corpus)


@pytest.mark.parametrize(
    ("model", "classes", "kept", "own"),
    [
        pytest.param(*case, marks=[] if case == ("with weights", 3, 4000, FEW) else pytest.mark.more)
        for case in (
            (model, *sizes, own)
            for model in ("without weights", "with weights")
            for sizes in ((2, None), (3, 4000))
            for own in (FEW, MANY)
        )
    ],
    indirect=["model"],
)
@pytest.mark.more
def test_a_minibatch_matches_the_reference(
    x64, ragged, assert_matches_reference, model, cleared, monkeypatch, classes, kept, own
):
    """Also test products of pairs that are kept for the first block only."""
    module, init = model
    corpus = ragged(classes)
    monkeypatch.setattr(two_layer_weights, "ROWS", 16)
    monkeypatch.setattr(self_attention, "NUMBERS", 1 << 12)
    if kept is not None:
        monkeypatch.setattr(self_attention, "_max_kept", lambda corpus, queries: kept)
    batch = jax.jit(Corpus.take)(corpus, jnp.array(own))
    assert self_attention._max_kept(batch, jnp.zeros((81, 7))) > 0
    ids, mask = map(np.asarray, reference.padded_sequences(corpus))
    alone = ja.data.from_sequences(
        [ids[k][mask[k]].tolist() for k in own],
        np.asarray(corpus.targets)[list(own)].tolist(),
        vocab_size=81,
        num_classes=classes,
    )
    assert_matches_reference(
        lambda x, _: module.outputs(x, batch), reference.two_layer_outputs, draw(init, corpus), alone
    )


@pytest.mark.more
@ONE_MODEL
def test_vmapped_minibatches_match_single_seeds(x64, ragged, model, cleared, monkeypatch):
    module, init = model
    corpus = ragged(2)
    monkeypatch.setattr(two_layer_weights, "ROWS", 16)
    monkeypatch.setattr(self_attention, "NUMBERS", 1 << 12)
    params = draw(init, corpus)

    @jax.jit
    def gradient(scale, own):
        on = corpus.take(own)
        scaled = params.replace(E=scale * params.E)
        return jax.grad(lambda x: ja.losses.classification(module.outputs(x, on), on.targets).mean())(scaled)

    scales, own = jnp.array([1.0, 0.5]), jnp.array([[3, 0, 7], [9, 4, 5]])
    vmapped = jax.vmap(gradient)(scales, own)
    for seed in range(2):
        for mine, theirs in zip(
            jax.tree.leaves(vmapped), jax.tree.leaves(gradient(scales[seed], own[seed])), strict=True
        ):
            np.testing.assert_allclose(mine[seed], theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("model", "platform", "corpus"),
    [
        pytest.param(*case, marks=[] if case in SUMS else pytest.mark.more)
        for case in itertools.product(
            ("without weights", "with weights"), ("gpu", "tpu"), ("ragged", "short draws", "long draws")
        )
    ],
    indirect=["model", "corpus"],
)
@pytest.mark.more
def test_sums_by_token_on_accelerators_match_the_reference(
    x64, corpus, assert_matches_reference, model, cleared, monkeypatch, platform
):
    module, init = model
    monkeypatch.setattr(self_attention.backend, "platform", lambda: platform)
    assert_matches_reference(module.outputs, reference.two_layer_outputs, draw(init, corpus), corpus)


@pytest.mark.more
def test_derivative_matches_finite_differences(x64, ragged, model):
    module, init = model
    corpus = ragged(3)
    logits = jax.jit(partial(module.outputs, residual=True))
    check_grads(lambda x: logits(x, corpus), (draw(init, corpus),), order=1, modes=["rev"], rtol=1e-6)


def test_two_tokens_match_a_manual_calculation(x64):
    """E = (1, 0), (0, 2); token 0 twice, token 1 once; row weights 2 e : 1 and 2 : e⁴."""
    corpus = ja.data.from_sequences([[0, 1, 0]], [1], vocab_size=2)
    params = two_layer.Params(
        E=jnp.diag(jnp.array([1.0, 2.0])), p=jnp.array([3.0, 0.0]), v=jnp.array([0.0, 1.0])
    )
    e = np.e
    h0 = np.array([2 * e, 2.0]) / (2 * e + 1)
    h1 = np.array([2.0, 2 * e**4]) / (2 + e**4)
    for residual in (0, 1):
        mixed0, mixed1 = h0 + residual * np.array([1, 0]), h1 + residual * np.array([0, 2])
        weight0, weight1 = 2 * np.exp(3 * mixed0[0]), np.exp(3 * mixed1[0])
        expected = (weight0 * mixed0[1] + weight1 * mixed1[1]) / (weight0 + weight1)
        logit = two_layer.outputs(params, corpus, residual=bool(residual))
        np.testing.assert_allclose(logit, [expected], rtol=1e-14)


@pytest.mark.more
def test_identity_weights_recover_the_model_without_weights(x64, ragged):
    corpus = ragged(3)
    params = draw(two_layer_weights.init, corpus)
    plain = draw(two_layer.init, corpus)
    for name in ("E", "p", "v"):
        np.testing.assert_array_equal(getattr(params, name), getattr(plain, name))
    with_weights, without = (
        jax.jit(outputs)(own, corpus)
        for outputs, own in ((two_layer_weights.outputs, params), (two_layer.outputs, plain))
    )
    np.testing.assert_allclose(with_weights, without, rtol=1e-13)
    for mine, theirs in zip(
        two_layer_weights.scores_and_values(params), two_layer.scores_and_values(plain), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13)


def test_scores_of_the_model_with_weights_use_the_transformed_query(x64, ragged):
    params = draw(partial(two_layer_weights.init, weights="normal"), ragged(2))
    scores, values = two_layer_weights.scores_and_values(params)
    np.testing.assert_allclose(scores, [row @ params.W2 @ params.p for row in params.E], rtol=1e-12)
    np.testing.assert_allclose(values, params.E @ params.v)


@pytest.mark.more
@ONE_MODEL
def test_vmap_matches_a_loop(x64, assert_vmap_matches_loop, model):
    module, init = model
    assert_vmap_matches_loop(init, module.outputs)


@pytest.mark.more
def test_padded_corpora_match_corpora_without_padding(rng, x64, model):
    """`from_draws` allocates rows for the largest number of distinct tokens; unused rows change nothing."""
    module, init = model
    tokens, labels = rng.integers(0, 20, (6, 70)), rng.choice([-1, 1], 6)
    reserved = from_draws(jnp.asarray(tokens), jnp.asarray(labels), vocab_size=90, num_classes=2)
    tight = ja.data.from_sequences(tokens.tolist(), labels.tolist(), vocab_size=90)
    assert len(reserved.bags.owner) > len(tight.bags.owner)
    params = draw(init, tight)
    for mine, theirs in zip(
        *(
            jax.tree.leaves(
                jax.jit(jax.value_and_grad(lambda x, c=c: (module.outputs(x, c) ** 2).sum()))(params)
            )
            for c in (reserved, tight)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.float64, marks=pytest.mark.more)])
@pytest.mark.more
def test_scores_around_1e3_are_finite_and_accurate(x64, ragged, assert_matches_reference, dtype):
    corpus = ragged(2)
    params = draw(two_layer.init, corpus, query=3e3, dtype=dtype)
    params = params.replace(E=15 * params.E)
    gram = params.E @ params.E.T
    assert jnp.abs(gram).max() > 1e3
    assert jnp.abs(params.E @ params.p).max() > 1e3
    results = jax.jit(jax.value_and_grad(lambda x: two_layer.outputs(x, corpus).sum()))(params)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(results))
    if dtype == jnp.float64:
        # Products of size 1e5 in an exponent have rounding errors of 1e-11.
        assert_matches_reference(
            two_layer.outputs, reference.two_layer_outputs, params, corpus, rtol=1e-7, atol=1e-7
        )


@pytest.mark.more
def test_float32_parameters_yield_float32_outputs(ragged, model):
    module, init = model
    corpus = ragged(2)
    params = draw(init, corpus, dtype=jnp.float32)
    results = jax.eval_shape(jax.value_and_grad(lambda x: module.outputs(x, corpus).sum()), params)
    assert {x.dtype for x in jax.tree.leaves(results)} == {jnp.dtype("float32")}


@pytest.mark.more
def test_enlarging_the_vocabulary_preserves_existing_rows():
    init = partial(two_layer_weights.init, jax.random.key(0), dim=5)
    for weights in ("identity", "normal"):
        small, large = (init(vocab_size=size, weights=weights) for size in (4, 9))
        np.testing.assert_array_equal(small.E, large.E[:4])
        np.testing.assert_array_equal(small.W1, large.W1)


def test_normal_weights_preserve_norms_on_average():
    params = two_layer_weights.init(jax.random.key(0), vocab_size=1, dim=300, weights="normal")
    for matrix in (params.W1, params.W2):
        np.testing.assert_allclose((matrix**2).sum() / 300, 1, atol=0.02)
    assert not jnp.allclose(params.W1, params.W2)
