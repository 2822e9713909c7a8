import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxattn as ja
from jaxattn.core import pytrees
from jaxattn.data import ragged as layout
from jaxattn.lab.probes.parameters import cosine_array, largest_eigenvalue


def test_norms_include_untrained_parameters(x64, corpus, show, draw, measure):
    corpus, model = corpus(3), ja.models.Mlp(dim=5)
    params = draw(model, corpus)
    found = measure(ja.probes.Norms(), show(model, params, corpus, train=("p",)))
    assert set(found) == {"norm_E", "norm_p", "norm_v", "norm_W", "norm_b"}
    for name, value in vars(params).items():
        np.testing.assert_allclose(found[f"norm_{name}"], np.sqrt(np.sum(np.asarray(value) ** 2)), rtol=1e-13)


def angle(x, y):
    x, y = np.ravel(x), np.ravel(y)
    return x @ y / (np.linalg.norm(x) * np.linalg.norm(y))


def test_cosines_match_explicit_formulas(x64, corpus, show, draw, measure):
    corpus, model = corpus(), ja.models.OneLayer(dim=12)  # Here E has the size of a (d, d) matrix.
    params = draw(model, corpus)
    found = measure(ja.probes.Alignments(), show(model, params, corpus, train=("E", "p")))
    assert set(found) == {"cos_p_v", "cos_E_descent", "cos_p_descent"}
    np.testing.assert_allclose(found["cos_p_v"], angle(params.p, params.v), rtol=1e-12)
    gradient = jax.jit(jax.grad(ja.dynamics.loss))(params, corpus)
    np.testing.assert_allclose(found["cos_E_descent"], -angle(params.E, gradient.E), rtol=1e-10)
    np.testing.assert_allclose(found["cos_p_descent"], -angle(params.p, gradient.p), rtol=1e-10)


def test_cosine_of_matrices_uses_all_entries(x64, corpus, show, draw, measure):
    corpus, model = corpus(3), ja.models.TwoLayerWeights(dim=5)
    params = draw(model, corpus)
    params = params.replace(W2=2 * params.W1 + params.W2)
    found = measure(ja.probes.Alignments(), show(model, params, corpus, train=("v",)))
    assert set(found) == {"cos_W1_W2", "cos_v_descent"}
    np.testing.assert_allclose(found["cos_W1_W2"], angle(params.W1, params.W2), rtol=1e-12)


def test_cosine_handles_tiny_and_zero_vectors():
    x, y = jnp.array([3e-30, 4e-30]), jnp.array([1e25, 0.0])
    np.testing.assert_allclose(cosine_array(x, y), 0.6, rtol=1e-6)
    assert jnp.isnan(cosine_array(x, jnp.zeros(2)))


TRAIN = ("E", "p", "v")


def quantity(params):
    E, p, v = (np.asarray(x) for x in (params.E, params.p, params.v))
    Q = np.zeros((E.shape[1], E.shape[1]))
    for row in E:
        Q += np.outer(row, row)
    for query in p if p.ndim == 2 else [p]:
        Q -= np.outer(query, query)
    per_head = v if p.ndim == 2 else v[None]
    for head in per_head:
        for column in head.T if head.ndim == 2 else [head]:
            Q -= np.outer(column, column)
    return Q


def drift(model, params, moved, corpus, show):
    @jax.jit
    def measure(params, moved):
        memory = ja.probes.Conservation().remember(params)
        return ja.probes.Conservation().measure(show(model, moved, corpus, memory=memory))[
            "conservation_drift"
        ]

    return measure(params, moved)


ONCE = [(3, 2, None), (20, 3, 2), (60, 2, 2), (60, 3, None)]


@pytest.mark.parametrize(
    ("dim", "classes", "heads"),
    [
        pytest.param(*case, marks=[] if case in ONCE else pytest.mark.more)
        # Dimensions relative to m rows: d < m, m < d < 2m, 2m < d.
        for case in itertools.product((3, 20, 60), (2, 3), (None, 2))
    ],
)
def test_drift_matches_the_explicit_matrix(x64, rng, corpus, show, draw, dim, classes, heads):
    corpus = corpus(classes)
    model = ja.models.MultiHead(dim=dim, heads=heads) if heads else ja.models.OneLayer(dim=dim)
    params = draw(model, corpus)
    for size in (1e-6, 1.0):
        moved = jax.tree.map(lambda x, size=size: x + size * jnp.asarray(rng.normal(size=x.shape)), params)
        before, after = quantity(params), quantity(moved)
        expected = np.linalg.norm(after - before) / np.linalg.norm(before)
        np.testing.assert_allclose(drift(model, params, moved, corpus, show), expected, rtol=1e-8)


@pytest.mark.parametrize("model", [ja.models.OneLayer(dim=40), ja.models.MultiHead(dim=6, heads=2)])
@pytest.mark.more
def test_drift_is_proportional_to_the_step_size(x64, corpus, show, draw, model):
    corpus = corpus()
    params = draw(model, corpus)
    found = []
    for size, steps in ((0.1, 200), (0.05, 400)):
        sgd = ja.dynamics.Descent(
            name="sgd", train=TRAIN, optimizer="sgd", step_size=jnp.float64(size), steps=400
        )
        moved = ja.dynamics.run(sgd, ja.dynamics.Task(model, data=corpus), params, steps=steps).params
        assert jnp.abs(moved.p - params.p).max() > 0.1
        found.append(float(drift(model, params, moved, corpus, show)))
    assert 1.7 < found[0] / found[1] < 2.3
    assert found[0] < 0.02


def test_small_drift_is_accurate_in_float32(corpus, show, draw):
    corpus, model = corpus(), ja.models.OneLayer(dim=64)
    params = model.init(jax.random.key(0), corpus, dtype=jnp.float32)
    moved = params.replace(p=params.p * 1.001, v=params.v * 0.999, E=params.E * 1.0005)
    before, after = (quantity(jax.tree.map(lambda x: np.asarray(x, np.float64), x)) for x in (params, moved))
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    np.testing.assert_allclose(drift(model, params, moved, corpus, show), expected, rtol=1e-3)


def test_conservation_requires_training_all_parameters(x64, corpus, show, draw, applies):
    corpus, model = corpus(), ja.models.OneLayer(dim=4)
    params = draw(model, corpus)
    memory = ja.probes.Conservation().remember(params)
    assert not applies(ja.probes.Conservation(), model, None, ("p",))
    assert applies(ja.probes.Conservation(), model, None, ("v", "E", "p"))
    assert ja.probes.Conservation().measure(show(model, params, corpus, memory=memory)) == {
        "conservation_drift": 0
    }
    with pytest.raises(ja.InputError, match="E: not a parameter of the model; known: W"):
        ja.probes.Conservation().remember({"W": params.E})


def test_conservation_works_under_vmap(x64, corpus, show, draw):
    corpus, model = corpus(), ja.models.OneLayer(dim=40)
    start = [draw(model, corpus, seed) for seed in (0, 1)]
    step = jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=1.0, train=TRAIN))
    moved = [step(x) for x in start]
    both, after = (jax.tree.map(lambda *x: jnp.stack(x), *x) for x in (start, moved))
    found = jax.vmap(lambda x, y: drift(model, x, y, corpus, show))(both, after)
    for lane in (0, 1):
        np.testing.assert_allclose(found[lane], drift(model, start[lane], moved[lane], corpus, show))


def multi_head_outputs(params, ids, mask):
    heads = zip(params.p, params.v, strict=True)
    each = [
        ja.models.reference.outputs(ja.models.one_layer.Params(E=params.E, p=p, v=v), ids, mask)
        for p, v in heads
    ]
    return sum(each) / len(each)


REFERENCE = {ja.models.OneLayer: ja.models.reference.outputs, ja.models.MultiHead: multi_head_outputs}


def dense(model, seeds, corpus, train, per_sequence=ja.losses.DEFAULT):
    """Compute the largest eigenvalues of the explicit Hessians of several seeds, from the reference loss."""
    ids, mask = ja.models.reference.padded_sequences(corpus)

    def hessian(params):
        flat, unravel = ravel_pytree({name: pytrees.get(params, name) for name in train})

        def loss(flat):
            f = REFERENCE[type(model)](params.replace(**unravel(flat)), ids, mask)
            return per_sequence(f, corpus.targets).mean()

        return jax.hessian(loss)(flat)

    return np.linalg.eigvalsh(np.asarray(jax.jit(jax.vmap(hessian))(seeds)))[:, -1]


def stacked(*params):
    return jax.tree.map(lambda *x: jnp.stack(x), *params)


ALL = ("E", "p", "v")
TWO_CLASSES = (ja.models.OneLayer(dim=5), 2, ja.losses.DEFAULT)
THREE_CLASSES = (ja.models.OneLayer(dim=5), 3, ja.losses.CrossEntropy(smoothing=0.2))
EXPONENTIAL = (ja.models.OneLayer(dim=5), 2, ja.losses.Exponential())
HEADS = (ja.models.MultiHead(dim=4, heads=2), 2, ja.losses.Squared())


@pytest.mark.parametrize(
    ("model", "classes", "per_sequence", "train"),
    [
        (*TWO_CLASSES, ("p",)),
        (*HEADS, ALL),
        *(
            pytest.param(*case, train, marks=pytest.mark.more)
            for case, train in (
                (TWO_CLASSES, ALL),
                (THREE_CLASSES, ("p",)),
                (THREE_CLASSES, ALL),
                (EXPONENTIAL, ("p",)),
                (EXPONENTIAL, ALL),
                (HEADS, ("p",)),
            )
        ),
    ],
)
@pytest.mark.more
def test_sharpness_matches_the_dense_hessian(
    x64, corpus, show, draw, measure, model, classes, per_sequence, train
):
    corpus = corpus(classes)
    params = draw(model, corpus)
    seen = show(model, params, corpus, train, per_sequence)
    (expected,) = dense(model, stacked(params), corpus, train, per_sequence)
    assert abs(expected) > 1e-3
    found = measure(ja.probes.Sharpness(iterations=90), seen)["sharpness"]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.more
@pytest.mark.parametrize("large", [pytest.param(False, marks=pytest.mark.more), True])
def test_sharpness_works_under_vmap(x64, corpus, show, draw, monkeypatch, large):
    if large:
        monkeypatch.setattr(layout, "LARGE", 1)
    corpus, model = corpus(), ja.models.OneLayer(dim=5)
    assert corpus.bags.is_large == large
    seeds = stacked(*(draw(model, corpus, seed) for seed in (0, 1, 2)))
    measure = jax.jit(jax.vmap(lambda x: ja.probes.Sharpness().measure(show(model, x, corpus))["sharpness"]))
    expected = dense(model, seeds, corpus, ("E", "p", "v"))
    np.testing.assert_allclose(measure(seeds), expected, rtol=1e-3)
    jax.clear_caches()


@jax.jit
def largest(matrix, start):
    return largest_eigenvalue(lambda x: matrix @ x, start, 30)


@pytest.mark.parametrize("rank", [0, 1, 3, 30])
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_eigenvalue_matches_numpy(rng, rank, sign):
    factor = rng.normal(size=(30, rank))
    start = np.float32(rng.normal(size=30))
    for size in (1e-30, 1.0, 1e20):
        matrix = np.float32(size) * sign * np.float32(factor @ factor.T)
        found = np.asarray(largest(matrix, start)) / np.float32(size)
        expected = np.linalg.eigvalsh(sign * factor @ factor.T)[-1]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_largest_eigenvalue_accepts_an_eigenvector_as_starting_vector():
    scaled = jax.jit(lambda factor, start: largest_eigenvalue(lambda x: factor * x, start, 5))
    np.testing.assert_allclose(scaled(-2.0, np.ones(5, np.float32)), -2, rtol=1e-6)
    np.testing.assert_allclose(scaled(3.0, np.ones(1, np.float32)), 3, rtol=1e-6)
    assert np.isnan(scaled(np.nan, np.ones(5, np.float32)))
