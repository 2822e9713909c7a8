from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.dynamics.descents.optimizers import ROTATION_INVARIANT
from jaxattn.models import one_layer, span, two_layer
from jaxattn.models.sampling import embeddings_query_head
from jaxattn.models.span import Rows

SIZES = {"vocab_size": 8, "num_classes": 2, "dtype": jnp.float64}
KEY = jax.random.key(3)


def start(**settings):
    return jax.jit(partial(span.start, **settings))(KEY)


def full_start(**settings):
    return Rows(*jax.jit(partial(embeddings_query_head, **settings))(KEY))


def products(rows):
    vectors = np.concatenate([np.asarray(rows.p)[None], np.atleast_2d(np.asarray(rows.v).T), rows.E])
    return vectors @ vectors.T


@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.more), 3])
@pytest.mark.parametrize("dim", [5, 14, 40])
@pytest.mark.usefixtures("x64")
def test_span_coordinates_preserve_inner_products(dim, classes):
    sizes = SIZES | {"num_classes": classes}
    short, full = start(dim=dim, **sizes), full_start(dim=dim, **sizes)
    np.testing.assert_allclose(products(short), products(full), rtol=1e-12, atol=1e-13)
    assert short.E.shape == (8, span.dimensions(dim, 8, classes))
    assert short.v.ndim == full.v.ndim


@pytest.mark.parametrize(("dim", "rtol"), [(11, 2e-6), (22, 2e-6), (200, 2e-6)])
@pytest.mark.more
def test_initial_span_coordinates_are_accurate_in_float32_for_nearly_square_matrices(dim, rtol):
    """A product of the ten rows with themselves would lose half the digits if d is hardly larger."""
    sizes = SIZES | {"dtype": jnp.float32}
    short, full = start(dim=dim, **sizes), full_start(dim=dim, **sizes)
    assert (jnp.diagonal(jnp.concatenate([short.p[None], short.v[None], short.E])) > 0).all()
    np.testing.assert_allclose(products(short), products(full), rtol=rtol, atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_basis_maps_span_coordinates_to_the_sampled_vectors():
    short, full = start(dim=40, **SIZES), full_start(dim=40, **SIZES)
    Q = np.asarray(jax.jit(partial(span.basis, dim=40, **SIZES))(KEY))
    for back, wanted in ((short.E @ Q.T, full.E), (Q @ short.p, full.p), (Q @ short.v, full.v)):
        np.testing.assert_allclose(back, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dim", [40, pytest.param(span.LARGE_DIM, marks=pytest.mark.more), "inf"])
@pytest.mark.usefixtures("x64")
def test_enlarging_the_vocabulary_preserves_existing_inner_products(dim):
    small, large = (start(dim=dim, **SIZES | {"vocab_size": size}) for size in (6, 9))
    np.testing.assert_allclose(products(large)[:8, :8], products(small), rtol=1e-12, atol=1e-14)


@pytest.mark.more
@pytest.mark.usefixtures("x64")
def test_initial_parameters_sampled_in_the_span_have_the_full_space_distribution():
    dim, vocab, classes = 12, 4, 3
    m = span.coordinates(vocab, classes)
    sizes = {"vocab_size": vocab, "num_classes": classes, "dtype": jnp.float64}

    def short(key):
        return span._apart(span._bartlett(key, m, dim, classes, jnp.float64), classes)

    def full(key):
        return Rows(*embeddings_query_head(key, dim=dim, **sizes))

    def gram(draw, first):
        keys = jax.vmap(jax.random.key)(jnp.arange(first, first + 1000))
        return np.stack([products(Rows(*rows)) for rows in zip(*jax.jit(jax.vmap(draw))(keys), strict=True)])

    ours, theirs = gram(short, 0), gram(full, 1000)
    heads = list(range(1, m - vocab))
    np.testing.assert_allclose(ours[:, heads, heads], 1, rtol=1e-12)
    for i in range(m):
        for j in range(i + 1):
            if i != j or i not in heads:
                # With 33 comparisons, one in 300 such tests fails by chance.
                assert stats.ks_2samp(ours[:, i, j], theirs[:, i, j]).pvalue > 1e-4, (i, j)


@pytest.mark.usefixtures("x64")
def test_infinite_dimension_is_the_limit_of_large_dimensions():
    sizes = SIZES | {"num_classes": 3}
    limit = products(start(dim="inf", **sizes))
    np.testing.assert_array_equal(limit, np.eye(12))
    # The 78 inner products are normal with variance 1/d, so none exceeds five deviations.
    np.testing.assert_allclose(products(start(dim=10**8, **sizes)), limit, atol=5 * 2**0.5 * 1e-4)


def moved(params, corpus, optimizer, steps, model=one_layer.OneLayer, **settings):
    phase = ja.dynamics.Descent(
        name="all", train=("E", "p", "v"), optimizer=optimizer, step_size=0.5, steps=steps, **settings
    )
    task = ja.dynamics.Task(model(dim=40), data=corpus)
    return ja.dynamics.run(phase, task, params, jax.random.key(0)).params


@pytest.mark.parametrize(
    ("name", "classes", "settings"),
    [
        ("sgd", 2, {}),
        *(pytest.param(name, 2, {}, marks=pytest.mark.more) for name in ROTATION_INVARIANT if name != "sgd"),
        pytest.param("sgd", 3, {"batch_size": 10}, marks=pytest.mark.more),
        pytest.param("sgd", 2, {"model": two_layer.TwoLayer}, marks=pytest.mark.more),
    ],
)
@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_training_in_the_span_matches_training_in_the_full_space(name, classes, settings):
    corpus = ja.data.independent(
        jax.random.key(1), vocab_size=8, length=5, sequences=30, num_classes=classes, relevant=6
    )
    sizes = SIZES | {"num_classes": classes}
    full = one_layer.init(KEY, dim=40, **sizes)
    short = one_layer.Params(*start(dim=40, **sizes))
    ours, theirs = (moved(params, corpus, name, 20, **settings) for params in (short, full))
    assert np.abs(products(theirs) - products(full)).max() > 0.01
    np.testing.assert_allclose(products(ours), products(theirs), rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_training_at_infinite_d_follows_the_gram_matrix_recurrences():
    corpus = ja.data.independent(jax.random.key(1), vocab_size=8, length=5, sequences=30, relevant=4)
    params = one_layer.init(KEY, dim="inf", **SIZES)
    after = moved(params, corpus, "sgd", 30)

    def loss(a, gamma):
        return ja.losses.classification(ja.attention.attend(corpus, a, gamma), corpus.targets).mean()

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    K, a, gamma, pp, pv, vv = np.eye(8), np.zeros(8), np.zeros(8), 1.0, 0.0, 1.0
    for _ in range(30):
        g, h = (np.asarray(x) for x in gradient(a, gamma))
        eta, Kg, Kh = 0.5, K @ g, K @ h
        K, a, gamma, pp, pv, vv = (
            K
            - eta * (np.outer(g, a) + np.outer(a, g) + np.outer(h, gamma) + np.outer(gamma, h))
            + eta**2 * (pp * np.outer(g, g) + pv * (np.outer(g, h) + np.outer(h, g)) + vv * np.outer(h, h)),
            a - eta * (pp * g + pv * h) - eta * Kg + eta**2 * (g * (a @ g) + h * (gamma @ g)),
            gamma - eta * (pv * g + vv * h) - eta * Kh + eta**2 * (g * (a @ h) + h * (gamma @ h)),
            pp - 2 * eta * a @ g + eta**2 * g @ Kg,
            pv - eta * (a @ h + gamma @ g) + eta**2 * g @ Kh,
            vv - 2 * eta * gamma @ h + eta**2 * h @ Kh,
        )
    np.testing.assert_allclose(after.E @ after.E.T, K, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(after.E @ after.p, a, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(after.E @ after.v, gamma, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        [after.p @ after.p, after.p @ after.v, after.v @ after.v], [pp, pv, vv], rtol=1e-12
    )


def test_subclass_with_custom_outputs_is_not_reduced_to_the_span():
    class Halved(ja.models.OneLayer, frozen=True, kw_only=True):
        def outputs(self, params, corpus):
            return super().outputs(params, corpus) / 2

    assert Halved(dim=64).in_span() == Halved(dim=64)
    assert type(ja.models.TwoLayer(dim=64, residual=True).in_span()).__name__ == "TwoLayerInSpan"


def test_infinite_dim_is_a_float_in_python_and_a_string_in_tables():
    assert ja.models.OneLayer(dim=float("inf")) == ja.models.OneLayer(dim="inf")
    assert ja.models.TwoLayer(dim=float("inf")).dim == "inf"
