import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jaxattn as ja
from jaxattn.attention import attend
from jaxattn.attention.softmax import require_rows
from jaxattn.core import backend


@pytest.fixture(
    scope="module",
    params=[(0, "cpu"), (1 << 60, "cpu"), (1 << 60, "gpu")],
    ids=["large", "small", "small on a GPU"],
)
def corpus(request):
    """A ragged corpus with repeated and unused tokens and long and short sequences, in each layout.

    All traces are cleared before and after the tests of a layout: those of `attend` do not depend on it.
    """
    large, platform = request.param
    rng = np.random.default_rng(1)
    lengths = [1, 1, 2, 3, 70, 150, *rng.integers(1, 60, 40)]
    sequences = [rng.integers(0, 80, length).tolist() for length in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxattn.data.ragged.LARGE", large)
        patch.setattr(backend, "platform", lambda: platform)
        jax.clear_caches()
        yield ja.data.from_sequences(sequences, rng.choice([-1, 1], len(lengths)).tolist(), vocab_size=90)
    jax.clear_caches()


def reference(corpus, scores, values):
    """Compute attention by position, for automatic differentiation."""
    ids, mask = ja.models.reference.padded_sequences(corpus)
    q = jax.nn.softmax(jnp.where(mask, scores[ids], -jnp.inf), axis=1)
    return jnp.einsum("nt,nt...->n...", q, values[ids])


@pytest.mark.parametrize(
    ("spread", "shape"),
    [
        (1.0, (90,)),
        (1e4, (90, 3)),
        *(
            pytest.param(*case, marks=pytest.mark.more)
            for case in ((1.0, (90, 3)), (30.0, (90,)), (30.0, (90, 3)), (1e4, (90,)))
        ),
    ],
)
def test_values_and_derivatives_match_the_reference(rng, x64, corpus, shape, spread):
    scores, values = jnp.asarray(spread * rng.normal(size=90)), jnp.asarray(rng.normal(size=shape))
    weight = jnp.asarray(rng.normal(size=(corpus.num_examples, *shape[1:])))
    for form in (attend, lambda c, a, g: reference(c, a, g)):
        both = jax.jit(jax.value_and_grad(lambda x, form=form: (weight * form(corpus, *x)).sum()))
        flat = jax.tree.leaves(both((scores, values)))
        if form is attend:
            ours = flat
    for mine, theirs in zip(ours, flat, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.more
def test_derivative_agrees_with_finite_differences(rng, x64, corpus):
    scores, values = rng.normal(size=(2, 90))
    attended = jax.jit(lambda a, g: attend(corpus, a, g))
    check_grads(attended, (scores, values), order=1, modes=["rev"], rtol=1e-6)


@pytest.mark.parametrize(
    "corpus",
    [(0, "cpu"), *(pytest.param((1 << 60, on), marks=pytest.mark.more) for on in ("cpu", "gpu"))],
    indirect=True,
)
@pytest.mark.more
def test_second_derivative_matches_the_reference(rng, x64, corpus):
    scores, values = map(jnp.asarray, rng.normal(size=(2, 90)))

    def hessian(form):
        return jax.jit(jax.jacfwd(jax.grad(lambda a: (form(corpus, a, values) ** 2).sum())))(scores)

    np.testing.assert_allclose(hessian(attend), hessian(reference), atol=1e-11)


@pytest.mark.more
def test_large_scores_are_accurate_in_float32(rng, corpus):
    scores = jnp.asarray(rng.choice([-1e4, 1e4, 9.9e3, 0.0], 90) + rng.normal(size=90), jnp.float32)
    values = jnp.asarray(rng.normal(size=90), jnp.float32)

    def summed(x):
        return attend(corpus, *x).sum()

    gradients = jax.jit(jax.grad(summed))((scores, values))
    assert all(np.isfinite(x).all() for x in gradients)
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), (scores, values))
        f = jax.jit(lambda x: reference(corpus, *x))(exact)
        expected = jax.jit(jax.grad(lambda x: reference(corpus, *x).sum()))(exact)
    # Float32 scores near 1e4 are spaced by 1e-3, so the float64 result uses the same rounded scores.
    np.testing.assert_allclose(jax.jit(attend)(corpus, scores, values), f, rtol=2e-5, atol=2e-6)
    for mine, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


def test_vmap_matches_a_loop_over_single_calls(rng, corpus):
    scores, values = jnp.asarray(rng.normal(size=(2, 5, 90)), jnp.float32)
    vmapped = jax.jit(jax.vmap(lambda a, g: attend(corpus, a, g)))(scores, values)
    one = jax.jit(attend)
    looped = np.stack([one(corpus, a, g) for a, g in zip(scores, values, strict=True)])
    np.testing.assert_allclose(vmapped, looped, rtol=1e-5, atol=1e-6)


def test_adding_a_constant_to_all_scores_has_no_effect(rng, x64, corpus):
    scores, values = map(jnp.asarray, rng.normal(size=(2, 90)))
    one = jax.jit(attend)
    np.testing.assert_allclose(one(corpus, scores, values), one(corpus, scores + 300, values), rtol=1e-10)


def test_a_wrong_number_of_tokens_is_rejected(corpus):
    """A gather would silently use the last token for missing tokens."""
    few = jnp.zeros(corpus.vocab_size - 1)
    for average in (attend, lambda corpus, a, x: ja.attention.pool(corpus, a, x[:, None])):
        with pytest.raises(ja.InputError, match=r"scores: expected one row for each of .* tokens, got shape"):
            average(corpus, few, few)
    with pytest.raises(ja.InputError, match=r"table: expected one row for each of"):
        require_rows(corpus, scores=jnp.zeros(corpus.vocab_size), table=few[:, None])
