"""All local devices: lanes are dealt out evenly, every device runs its own, and none waits for another."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def over_lanes(function: Callable[..., Any], in_axes: Sequence[int | None]) -> Callable[..., Any]:
    """Lift a function of one lane to lanes on a leading axis, dealt out over the local devices.

    Args:
        function: pure function of one lane.
        in_axes: for every argument 0 if each lane has its own, None if all lanes share it.

    Returns:
        The function of all lanes; their number is a multiple of the number of devices.
    """
    return dealt(jax.vmap(function, in_axes=tuple(in_axes)), in_axes)


def dealt(function: Callable[..., Any], in_axes: Sequence[int | None]) -> Callable[..., Any]:
    """Deal the lanes of a function that takes many at once out over the local devices; see `over_lanes`."""
    if (mesh := _mesh()) is None:
        return function
    specs = tuple(P() if axis is None else P("lanes") for axis in in_axes)
    # Every device runs its own loops to its own ends. Nothing is reduced over lanes, so nothing need be
    # tracked as replicated; tracking would sum gradients of parameters made inside over lanes.
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("lanes"), check_vma=False)


def place(tree: Any, shared: bool) -> Any:
    """Put arrays where they are needed: on every device if shared, else each lane's on its own."""
    if (mesh := _mesh()) is None:
        return tree
    return jax.device_put(tree, NamedSharding(mesh, P() if shared else P("lanes")))


def fill(lanes: Sequence[Any]) -> list[Any]:
    """Repeat the last lane until every device has as many."""
    return [*lanes, *[lanes[-1]] * (-len(lanes) % len(jax.local_devices()))]


@cache
def _mesh() -> Mesh | None:
    devices = jax.local_devices()
    if len(devices) == 1:
        return None
    return jax.make_mesh((len(devices),), ("lanes",), axis_types=(AxisType.Auto,), devices=devices)
