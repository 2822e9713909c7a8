from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.data import ragged as module
from jaxattn.data.ragged import ragged


def draw(rng, segments, indices, longest, xp=np):
    """Return random sorted entries and the dense matrix of their counts."""
    sizes = rng.integers(0, longest + 1, segments)
    sizes[0] = longest
    segment = np.repeat(np.arange(segments), sizes)
    index = np.concatenate([rng.permutation(indices)[:size] for size in sizes])
    count = rng.integers(1, 9, len(segment))
    dense = np.zeros((segments, indices))
    dense[segment, index] = count
    return xp.asarray(segment), xp.asarray(index), xp.asarray(count), dense


@pytest.mark.parametrize(
    ("xp", "segments", "longest"),
    [
        *((np, *sizes) for sizes in ((1, 1), (40, 32), (9, 500))),
        (jnp, 40, 33),
        *(pytest.param(np, *sizes, marks=pytest.mark.more) for sizes in ((7, 5), (40, 33), (3, 3000))),
        *(
            pytest.param(jnp, *sizes, marks=pytest.mark.more)
            for sizes in ((1, 1), (7, 5), (40, 32), (9, 500), (3, 3000))
        ),
    ],
)
def test_sums_and_maxima_match_the_dense_matrix(rng, x64, segments, longest, xp):
    segment, index, count, dense = draw(rng, segments, longest + 3, longest, xp)
    lay_out = partial(ragged, segments=segments, indices=longest + 3, longest=longest)
    made, _ = (lay_out if xp is np else jax.jit(lay_out))(segment, index, count)
    made = jax.tree.map(jnp.asarray, made)
    x, y = rng.normal(size=(2, longest + 3))
    for got, column in zip(jax.jit(module.Ragged.dot)(made, x, y), (x, y), strict=True):
        np.testing.assert_allclose(got, dense @ column, atol=1e-11)
    entries = np.where(np.asarray(made.count) > 0, x[np.asarray(made.index)], -np.inf)
    expected = np.where(dense > 0, x, -np.inf).max(axis=1)
    np.testing.assert_array_equal(jax.jit(module.Ragged.max)(made, entries), expected)


def test_entries_with_an_out_of_range_segment_are_ignored(rng, x64):
    segment, index, count, dense = draw(rng, 5, 90, 80)
    padded = [np.concatenate([x, np.full(50, fill)]) for x, fill in ((segment, 5), (index, 0), (count, 7))]
    made, _ = jax.jit(partial(ragged, segments=5, indices=90, longest=80))(*padded)
    x = rng.normal(size=90)
    np.testing.assert_allclose(jax.jit(module.Ragged.dot)(made, x)[0], dense @ x, atol=1e-12)


def test_numpy_and_traced_layouts_agree(rng, x64):
    segment, index, count, _ = draw(rng, 30, 150, 140)

    def layout(segment, index, count):
        return ragged(segment, index, count, segments=30, indices=150, longest=140)[0]

    x = jnp.asarray(rng.normal(size=150))
    dot = jax.jit(module.Ragged.dot)
    on_host = dot(jax.tree.map(jnp.asarray, layout(segment, index, count)), x)[0]
    traced = dot(jax.jit(layout)(segment, index, count), x)[0]
    np.testing.assert_allclose(on_host, traced, rtol=1e-13)


def test_indices_have_the_smallest_dtype_and_padding_is_bounded(rng):
    segment, index, count, _ = draw(rng, 2000, 300, 200)
    made, _ = ragged(segment, index, count, segments=2000, indices=300, longest=200)
    assert made.index.dtype == np.uint16
    assert made.count.dtype == np.uint8
    assert made.index.size <= len(segment) + 2000 * module.WIDTH


@pytest.mark.parametrize("columns", [1, 8, 13])
@pytest.mark.parametrize("large", [0, 1 << 60], ids=["compressed", "plain"])
def test_matmul_matches_the_dense_product(rng, x64, monkeypatch, columns, large):
    monkeypatch.setattr(module, "LARGE", large)
    monkeypatch.setattr(module, "RUN", 10)
    monkeypatch.setattr(module, "FAN", 3)
    segment, index, count, dense = draw(rng, 9, 503, 500)
    made, _ = ragged(segment, index, count, segments=9, indices=503, longest=500)
    made, x = jax.tree.map(jnp.asarray, made), rng.normal(size=(503, columns))
    assert (made.factors is None) == (large > 0)
    np.testing.assert_allclose(jax.jit(module.Ragged.matmul)(made, x), dense @ x, atol=1e-11)
    # The method of devices other than CPUs.
    np.testing.assert_allclose(jax.jit(module.Ragged._matmul_in_rows)(made, x), dense @ x, atol=1e-11)


@pytest.fixture
def for_tpu(monkeypatch):
    """Use the layout for a TPU, also for small matrices."""
    monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(module.backend, "platform", lambda: "tpu")


@pytest.mark.parametrize("columns", [1, 8])
def test_tpu_multiplies_by_the_dense_matrix(rng, x64, for_tpu, columns):
    segment, index, count, dense = draw(rng, 9, 53, 40)
    # Entries to drop; each has the index of another entry.
    segment, index, count = (np.append(x, [y, y]) for x, y in ((segment, 9), (index, 3), (count, 7)))
    made, _ = ragged(segment, index, count, segments=9, indices=53, longest=40)
    assert made.dense[0].dtype == np.uint8
    np.testing.assert_array_equal(made.dense[0], dense)
    made, x = jax.tree.map(jnp.asarray, made), jnp.asarray(rng.normal(size=(53, columns)))
    np.testing.assert_allclose(made._matmul_dense(x), dense @ x, atol=1e-13)
    # The same corpus, moved to a CPU.
    np.testing.assert_allclose(made.matmul(x), dense @ x, atol=1e-13)


def test_dense_matrix_is_omitted_if_too_large_or_inexact(rng, for_tpu, monkeypatch):
    segment, index, count, _ = draw(rng, 9, 53, 40)

    def dense(count):
        return ragged(segment, index, count, segments=9, indices=53, longest=40)[0].dense

    assert len(dense(count)) == 1
    assert len(dense(np.append(count[1:], 255))) == 1
    assert dense(np.append(count[1:], 256)) == ()
    monkeypatch.setattr(module, "DENSE", 9 * 53 - 1)
    assert dense(count) == ()


def test_bfloat16_products_are_exact_for_counts(rng):
    counts = np.arange(module.EXACT + 1)
    np.testing.assert_array_equal(np.asarray(jnp.asarray(counts, jnp.bfloat16), int), counts)
    x = np.float32(rng.normal(size=1000) * 10.0 ** rng.integers(-20, 20, 1000))
    left, passes = x, []
    for _ in range(3):
        passes.append(np.asarray(jnp.asarray(left, jnp.bfloat16), np.float32))
        left = left - passes[-1]
    np.testing.assert_array_equal(sum(passes[::-1]), x)


def test_compressed_factors_reduce_rounding_error_in_long_sums(rng, monkeypatch):
    monkeypatch.setattr(module, "LARGE", 0)
    ones = np.ones(1 << 16, int)
    made, _ = ragged(0 * ones, np.arange(1 << 16), ones, segments=1, indices=1 << 16, longest=1 << 16)
    x = np.full((1 << 16, 8), 1.1, np.float32)
    exact = x.astype(float).sum(axis=0)
    # Half a unit in the last place for each term of a sequential sum.
    tolerance = (module.RUN + 3 * module.FAN) * np.finfo(np.float32).eps / 2
    np.testing.assert_allclose(made.matmul(jnp.asarray(x))[0], exact, rtol=tolerance)
    assert not np.allclose(np.cumsum(x, axis=0)[-1], exact, rtol=tolerance)
