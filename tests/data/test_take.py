"""Batched gathers from a concatenated array, as on a GPU, compared with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import backend
from jaxattn.data import ragged


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(backend, "platform", lambda: "gpu")


@pytest.fixture
def flat(monkeypatch):
    """Record the gathers that read a concatenated batch."""
    sizes = []
    plain = ragged._take

    def counted(x, index):
        sizes.append(x.shape)
        return plain(x, index)

    monkeypatch.setattr(ragged, "_take", counted)
    return sizes


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("rest", [(), (3,)])
def test_a_batched_gather_reads_one_concatenated_array(rng, on_gpu, flat, dtype, rest):
    x = (100 * rng.normal(size=(4, 7, *rest))).astype(dtype)
    index = rng.integers(0, 7, (4, 5, 2)).astype(np.uint8)
    found = jax.vmap(ragged.take)(jnp.asarray(x), jnp.asarray(index))
    np.testing.assert_array_equal(found, np.stack([x[k][index[k]] for k in range(4)]))
    assert flat[-1] == (28, *rest)


@pytest.mark.parametrize("axes", [(0, None), (None, 0)])
def test_gathers_with_a_shared_array_or_index_are_correct(rng, on_gpu, axes):
    x, index = rng.normal(size=(4, 7)).astype(np.float32), rng.integers(0, 7, (4, 5))
    given = x if axes[0] == 0 else x[0], index if axes[1] == 0 else index[0]
    found = jax.vmap(ragged.take, axes)(*map(jnp.asarray, given))
    lanes = [(x[k if axes[0] == 0 else 0], index[k if axes[1] == 0 else 0]) for k in range(4)]
    np.testing.assert_array_equal(found, np.stack([own[which] for own, which in lanes]))


def test_derivatives_match_plain_gathers(rng, on_gpu, x64):
    x, index = jnp.asarray(rng.normal(size=(3, 6))), jnp.asarray(rng.integers(0, 6, (3, 8)))

    def energy(gather):
        def of_lane(x, index):
            return (jnp.sin(gather(x, index)) ** 3).sum()

        return of_lane

    for derivative in (jax.grad, jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))):
        ours, plain = (
            jax.jit(jax.vmap(derivative(energy(gather))))(x, index)
            for gather in (ragged.take, lambda x, i: x[i])
        )
        np.testing.assert_allclose(ours, plain, rtol=1e-14, atol=1e-14)


def test_batches_exceeding_the_32_bit_index_limit_are_not_concatenated(on_gpu, monkeypatch, flat):
    monkeypatch.setattr(ragged, "MAX_POSITIONS", 27)
    jax.vmap(ragged.take)(jnp.zeros((4, 7)), jnp.zeros((4, 2), jnp.int32))
    assert (28,) not in flat


def test_gpu_products_match_the_dense_product(rng, monkeypatch):
    """Compare the product that a GPU computes with the dense product."""
    monkeypatch.setattr(ragged, "LARGE", 1)
    segment = np.sort(rng.integers(0, 9, 400))
    index, count = rng.integers(0, 11, 400), rng.integers(1, 5, 400)
    layout, _ = ragged.ragged(segment, index, count, segments=9, indices=11, longest=400, width=8)
    dense = np.zeros((9, 11))
    np.add.at(dense, (segment, index), count)
    columns = rng.normal(size=(11, 6))
    with jax.enable_x64(True):
        layout = jax.tree.map(jnp.asarray, layout)
        np.testing.assert_allclose(
            jax.jit(ragged.Ragged._matmul_at_once)(layout, columns), dense @ columns, rtol=1e-13
        )


@pytest.mark.parametrize(
    ("platform", "host", "most"), [("cpu", False, 18), ("gpu", False, 24), ("tpu", True, 18)]
)
def test_threshold_for_large_matrices_depends_on_the_platform(monkeypatch, platform, host, most):
    monkeypatch.setattr(backend, "platform", lambda: platform)
    for size, large in ((2**most - 32, False), (2**most, True)):
        index = jax.ShapeDtypeStruct((size // 32, 32), jnp.int32)
        layout = ragged.Ragged(index, index, index, (), 5, () if host else None)
        assert layout.is_large == large
