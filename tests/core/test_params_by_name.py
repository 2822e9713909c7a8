import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxattn.core import params_by_name
from jaxattn.core.errors import InputError


@struct.dataclass
class Flax:
    E: object
    p: object
    power: int = struct.field(pytree_node=False, default=2)


@dataclasses.dataclass(frozen=True)
class Plain:
    E: object
    p: object
    power: int = dataclasses.field(default=2, metadata={"static": True})


class Tuple(NamedTuple):
    E: object
    p: object


@pytest.mark.parametrize("kind", [Flax, Plain, Tuple, dict])
def test_parameters_are_found_and_replaced_by_name(kind):
    params = kind(E=jnp.ones((3, 2)), p=jnp.zeros(2))
    assert params_by_name.names(params) == ("E", "p")
    changed = params_by_name.replaced(params, p=jnp.ones(2))
    assert type(changed) is kind
    np.testing.assert_array_equal(params_by_name.get(changed, "p"), [1, 1])
    np.testing.assert_array_equal(params_by_name.get(params, "p"), [0, 0])
    assert params_by_name.get(changed, "E") is params_by_name.get(params, "E")
    for unknown in (lambda: params_by_name.get(params, "q"), lambda: params_by_name.replaced(params, q=1)):
        with pytest.raises(InputError, match="q: not a parameter of the model; it has E, p"):
            unknown()


def test_something_without_names_is_refused():
    with pytest.raises(InputError, match="a list has no names"):
        params_by_name.names([1, 2])
