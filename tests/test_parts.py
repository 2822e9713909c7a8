"""Mapping in equal parts: every item as in a loop, and the function traced once."""

import jax
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

from jaxattn.parts import map_in_equal_parts


@pytest.mark.parametrize(("size", "most"), [(8, 3), (7, 7), (5, 1), (6, 4), (3, 2), (9, 8)])
def test_items_equal_those_of_a_loop_and_are_traced_in_one_part(rng, size, most):
    together = []

    @custom_vmap
    def double(x):
        return 2 * x

    @double.def_vmap
    def rule(size, _, x):
        together.append(size)
        return 2 * x, True

    numbers = rng.integers(0, 100, (size, 2))
    keys = jax.random.split(jax.random.key(0), size)
    doubled, drawn = jax.jit(
        lambda *items: map_in_equal_parts(
            lambda item: (double(item[0]), jax.random.bits(item[1])), items, most
        )
    )(numbers, keys)
    np.testing.assert_array_equal(doubled, 2 * numbers)
    np.testing.assert_array_equal(drawn, [jax.random.bits(key) for key in keys])
    assert len(together) == (most > 1)
    assert all(each <= most for each in together)
