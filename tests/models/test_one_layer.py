import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from models.params import generic

import jaxattn as ja
from jaxattn.models.one_layer import project


def corpora(rng, classes):
    """Random corpora: ragged or of equal lengths, with repeated tokens, unused ones, and one to 90 tokens."""
    sequences = [rng.integers(0, 25, length).tolist() for length in [1, 2, 2, 90, *rng.integers(1, 40, 30)]]
    drawn = rng.integers(0, classes, len(sequences))
    labels = (2 * drawn - 1 if classes == 2 else drawn).tolist()
    for vocab_size in (25, 61):
        yield ja.data.from_sequences(sequences, labels, vocab_size=vocab_size, num_classes=classes)
    labels = np.arange(12 * classes) % classes
    labels = 2 * labels - 1 if classes == 2 else labels
    drawn = jnp.asarray(rng.integers(0, 30, (12 * classes, 9))), jnp.asarray(labels)
    yield ja.data.from_draws(*drawn, vocab_size=30, num_classes=classes)


@pytest.mark.parametrize("classes", [2, *(pytest.param(n, marks=pytest.mark.more) for n in (3, 5))])
def test_logits_and_gradients_match_the_reference(rng, x64, classes):
    for corpus in corpora(rng, classes):
        sizes = {"vocab_size": corpus.vocab_size, "dim": 12, "num_classes": classes}
        params = generic(ja.models.one_layer.init, **sizes, dtype=jnp.float64)
        params = params.replace(p=8 * params.p)
        ids, mask = ja.models.reference.padded_sequences(corpus)

        def reference_outputs(params, ids=ids, mask=mask):
            return ja.models.reference.outputs(params, ids, mask)

        def reference_loss(params, reference_outputs=reference_outputs, labels=corpus.targets):
            return ja.losses.classification(reference_outputs(params), labels).mean()

        logits = jax.jit(ja.models.one_layer.outputs)(params, corpus)
        np.testing.assert_allclose(logits, jax.jit(reference_outputs)(params), rtol=1e-10, atol=1e-12)
        ours = jax.jit(jax.grad(ja.dynamics.loss))(params, corpus)
        theirs = jax.jit(jax.grad(reference_loss))(params)
        for name in ("E", "p", "v"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-10, atol=1e-12)


def test_gradients_match_the_closed_form(rng, x64):
    """-∂L/∂E_s = mean[y g Σ q_i (v + (E_s·v - f) p)] and the other gradients, summed in NumPy."""
    sequences = [rng.integers(0, 6, rng.integers(1, 8)).tolist() for _ in range(20)]
    labels = rng.choice([-1, 1], 20)
    corpus = ja.data.from_sequences(sequences, labels.tolist(), vocab_size=6)
    params = generic(ja.models.one_layer.init, vocab_size=6, dim=5, dtype=jnp.float64)
    E, p, v = (np.asarray(x) for x in (params.E, params.p, params.v))
    dE, dp, dv = np.zeros_like(E), np.zeros_like(p), np.zeros_like(v)
    for tokens, y in zip(sequences, labels, strict=True):
        weight = np.exp([E[s] @ p for s in tokens])
        q = weight / weight.sum()
        f = sum(q_i * (E[s] @ v) for q_i, s in zip(q, tokens, strict=True))
        yg = y / (1 + np.exp(y * f)) / 20
        for q_i, s in zip(q, tokens, strict=True):
            dE[s] -= yg * q_i * (v + (E[s] @ v - f) * p)
            dp -= yg * q_i * (E[s] @ v - f) * E[s]
            dv -= yg * q_i * E[s]
    gradient = jax.jit(jax.grad(ja.dynamics.loss))(params, corpus)
    for name, expected in (("E", dE), ("p", dp), ("v", dv)):
        np.testing.assert_allclose(getattr(gradient, name), expected, rtol=1e-12, atol=1e-15)


def test_initial_parameters_have_the_documented_distribution_and_ignore_padding():
    params = ja.models.one_layer.init(jax.random.key(0), vocab_size=300, dim=400, num_classes=3)
    assert params.v.shape == (400, 3)
    np.testing.assert_allclose(jnp.linalg.norm(params.v, axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose((params.E**2).sum() / 300, 1, atol=0.02)
    assert abs(float((params.p**2).sum()) - 1) < 0.3
    padded = ja.models.one_layer.init(jax.random.key(0), vocab_size=350, dim=400, num_classes=3)
    np.testing.assert_array_equal(padded.E[:300], params.E)
    np.testing.assert_array_equal(padded.p, params.p)


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 0), ("dim", 0), ("num_classes", 1)])
def test_invalid_sizes_are_rejected(name, value):
    sizes = {"vocab_size": 3, "dim": 2, "num_classes": 2} | {name: value}
    with pytest.raises(ja.InputError, match=rf"{name}: (must be at least|expected 'int' >=) \d, got {value}"):
        ja.models.one_layer.init(jax.random.key(0), **sizes)


@pytest.fixture(params=[(), (1,), (3,)], ids=["one head", "a column", "three heads"])
def arrays(request, rng, x64):
    E, p, v = rng.normal(size=(7, 5)), rng.normal(size=5), rng.normal(size=(5, *request.param))
    return tuple(map(jnp.asarray, (E, p, v)))


def plain(E, p, v):
    return E @ p, E @ v


def weighted(project, weights):
    """Return a function of E, p and v whose derivatives differ between tokens."""

    def call(*arrays):
        return sum((jnp.sin(x) * w).sum() for x, w in zip(project(*arrays), weights, strict=True))

    return call


def test_project_matches_two_separate_products(arrays):
    for mine, other in zip(project(*arrays), plain(*arrays), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-14)


@pytest.mark.parametrize("by", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.more
def test_derivatives_of_project_match_those_of_two_separate_products(rng, arrays, by):
    weights = [jnp.asarray(rng.normal(size=x.shape)) for x in plain(*arrays)]
    mine, theirs = (jax.jit(jax.grad(weighted(f, weights), by))(*arrays) for f in (project, plain))
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)


def test_project_is_differentiable_in_each_argument_separately(arrays):
    for kind in (0, 1):
        gradient = jax.grad(lambda E, p, v, kind=kind: project(E, p, v)[kind].sum(), (0, 1, 2))
        expected = jax.grad(lambda E, p, v, kind=kind: plain(E, p, v)[kind].sum(), (0, 1, 2))
        for one, other in zip(jax.jit(gradient)(*arrays), jax.jit(expected)(*arrays), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14)


def test_second_derivatives_use_forward_over_reverse_mode(rng, arrays):
    weights = [jnp.asarray(rng.normal(size=x.shape)) for x in plain(*arrays)]
    check_grads(jax.jit(jax.grad(weighted(project, weights), (0, 1, 2))), arrays, order=1, modes=("fwd",))


def test_vmap_matches_a_loop(rng, x64):
    E, p, v = (jnp.asarray(rng.normal(size=(4, *shape))) for shape in ((7, 5), (5,), (5,)))
    call = jax.jit(jax.grad(lambda E, p, v: sum((x**2).sum() for x in project(E, p, v)), (0, 1, 2)))
    for vmapped, looped in zip(
        jax.jit(jax.vmap(call))(E, p, v), zip(*map(call, E, p, v), strict=True), strict=True
    ):
        np.testing.assert_allclose(vmapped, np.stack(looped), rtol=1e-13)
    one = jax.jit(jax.vmap(call, (None, 0, None)))(E[0], p, v[0])
    np.testing.assert_allclose(one[0][2], call(E[0], p[2], v[0])[0], rtol=1e-13)


def test_a_gradient_step_reads_the_embeddings_twice(rng):
    E, p, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((700, 50), (50,), (50,)))
    gradient = jax.grad(lambda p, v, E: sum((x**2).sum() for x in project(E, p, v)), (0, 1))
    program = jax.jit(gradient).lower(p, v, E).compile().as_text()
    assert program.count(" dot(") == 2
