import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.data import ragged as module
from jaxattn.data.ragged import ragged


def draw(rng, segments, indices, longest, xp=np):
    """Random sorted entries and the dense matrix of counts they stand for."""
    sizes = rng.integers(0, longest + 1, segments)
    sizes[0] = longest
    segment = np.repeat(np.arange(segments), sizes)
    index = np.concatenate([rng.permutation(indices)[:size] for size in sizes])
    count = rng.integers(1, 9, len(segment))
    dense = np.zeros((segments, indices))
    dense[segment, index] = count
    return xp.asarray(segment), xp.asarray(index), xp.asarray(count), dense


@pytest.mark.parametrize(("segments", "longest"), [(1, 1), (7, 5), (40, 32), (40, 33), (9, 500), (3, 3000)])
@pytest.mark.parametrize("xp", [np, jnp])
def test_sums_and_maxima_equal_those_of_the_dense_matrix(rng, x64, segments, longest, xp):
    segment, index, count, dense = draw(rng, segments, longest + 3, longest, xp)
    made, _ = ragged(segment, index, count, segments=segments, indices=longest + 3, longest=longest)
    made = jax.tree.map(jnp.asarray, made)
    x, y = rng.normal(size=(2, longest + 3))
    for got, column in zip(made.dot(jnp.asarray(x), jnp.asarray(y)), (x, y), strict=True):
        np.testing.assert_allclose(got, dense @ column, atol=1e-11)
    entries = jnp.where(made.count > 0, jnp.asarray(x)[made.index], -jnp.inf)
    expected = np.where(dense > 0, x, -np.inf).max(axis=1)
    np.testing.assert_array_equal(made.max(entries), expected)


def test_left_out_entries_and_unused_rows_do_not_count(rng, x64):
    segment, index, count, dense = draw(rng, 5, 90, 80)
    padded = [np.concatenate([x, np.full(50, fill)]) for x, fill in ((segment, 5), (index, 0), (count, 7))]
    made, _ = ragged(*map(jnp.asarray, padded), segments=5, indices=90, longest=80)
    x = rng.normal(size=90)
    np.testing.assert_allclose(made.dot(jnp.asarray(x))[0], dense @ x, atol=1e-12)


def test_host_and_traced_layouts_agree(rng, x64):
    segment, index, count, _ = draw(rng, 30, 150, 140)

    def layout(segment, index, count):
        return ragged(segment, index, count, segments=30, indices=150, longest=140)[0]

    x = jnp.asarray(rng.normal(size=150))
    on_host = jax.tree.map(jnp.asarray, layout(segment, index, count)).dot(x)[0]
    traced = jax.jit(layout)(segment, index, count).dot(x)[0]
    np.testing.assert_allclose(on_host, traced, rtol=1e-13)


def test_indices_are_stored_in_the_smallest_type_and_padding_is_bounded(rng):
    segment, index, count, _ = draw(rng, 2000, 300, 200)
    made, _ = ragged(segment, index, count, segments=2000, indices=300, longest=200)
    assert made.index.dtype == np.uint16
    assert made.count.dtype == np.uint8
    assert made.index.size <= len(segment) + 2000 * module.WIDTH
