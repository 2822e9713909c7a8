import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxattn import losses, models
from jaxattn.core import params_by_name
from jaxattn.data import ragged as layout
from jaxattn.models import reference
from jaxattn.probes import Sharpness
from jaxattn.probes.sharpness import largest_eigenvalue

TEXTBOOK = {models.OneLayer: reference.outputs, models.MultiHead: reference.multi_head_outputs}


def dense(model, seeds, corpus, train, per_sequence=losses.DEFAULT):
    """The largest eigenvalues of the Hessians of several seeds written out, from the textbook form."""
    ids, mask = reference.padded_sequences(corpus)

    def hessian(params):
        flat, unravel = ravel_pytree({name: params_by_name.get(params, name) for name in train})

        def loss(flat):
            f = TEXTBOOK[type(model)](params.replace(**unravel(flat)), ids, mask)
            return per_sequence(f, corpus.targets).mean()

        return jax.hessian(loss)(flat)

    return np.linalg.eigvalsh(np.asarray(jax.jit(jax.vmap(hessian))(seeds)))[:, -1]


def stacked(*params):
    return jax.tree.map(lambda *x: jnp.stack(x), *params)


ALL = ("E", "p", "v")
TWO_CLASSES = (models.OneLayer(dim=5), 2, losses.DEFAULT)
THREE_CLASSES = (models.OneLayer(dim=5), 3, losses.CrossEntropy(smoothing=0.2))
EXPONENTIAL = (models.OneLayer(dim=5), 2, losses.Exponential())
HEADS = (models.MultiHead(dim=4, heads=2), 2, losses.Squared())


@pytest.mark.parametrize(
    ("model", "classes", "per_sequence", "train"),
    [
        (*TWO_CLASSES, ("p",)),
        (*THREE_CLASSES, ALL),
        (*HEADS, ALL),
        *(
            pytest.param(*case, train, marks=pytest.mark.more)
            for case, train in (
                (TWO_CLASSES, ALL),
                (THREE_CLASSES, ("p",)),
                (EXPONENTIAL, ("p",)),
                (EXPONENTIAL, ALL),
                (HEADS, ("p",)),
            )
        ),
    ],
)
def test_it_is_the_largest_eigenvalue_of_the_dense_hessian(
    x64, corpus, show, draw, model, classes, per_sequence, train
):
    corpus = corpus(classes)
    params = draw(model, corpus)
    seen = show(model, params, corpus, train, per_sequence)
    (expected,) = dense(model, stacked(params), corpus, train, per_sequence)
    assert abs(expected) > 1e-3
    found = Sharpness(iterations=90).measure(seen)["sharpness"]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("large", [pytest.param(False, marks=pytest.mark.more), True])
def test_seeds_are_measured_together(x64, corpus, show, draw, monkeypatch, large):
    if large:
        monkeypatch.setattr(layout, "LARGE", 1)
    corpus, model = corpus(), models.OneLayer(dim=5)
    assert corpus.bags.is_large == large
    seeds = stacked(*(draw(model, corpus, seed) for seed in (0, 1, 2)))
    measure = jax.jit(jax.vmap(lambda x: Sharpness().measure(show(model, x, corpus))["sharpness"]))
    expected = dense(model, seeds, corpus, ("E", "p", "v"))
    np.testing.assert_allclose(measure(seeds), expected, rtol=1e-3)
    jax.clear_caches()


@pytest.mark.parametrize("rank", [0, 1, 3, 30])
@pytest.mark.parametrize("sign", [1, -1])
def test_matrices_of_any_rank_sign_and_size(rng, rank, sign):
    factor = rng.normal(size=(30, rank))
    start = jnp.asarray(rng.normal(size=30), jnp.float32)
    for size in (1e-30, 1.0, 1e20):
        matrix = size * sign * jnp.asarray(factor @ factor.T, jnp.float32)
        found = largest_eigenvalue(lambda x, A=matrix: A @ x, start, 30) / size
        expected = np.linalg.eigvalsh(sign * factor @ factor.T)[-1]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_an_exact_eigenvector_and_one_number_end_early():
    np.testing.assert_allclose(largest_eigenvalue(lambda x: -2 * x, jnp.ones(5), 5), -2, rtol=1e-6)
    np.testing.assert_allclose(largest_eigenvalue(lambda x: 3 * x, jnp.ones(1), 5), 3, rtol=1e-6)
    assert jnp.isnan(largest_eigenvalue(lambda x: jnp.nan * x, jnp.ones(5), 5))
