"""Which devices programs are made for: those of this process, or those of a chip that is not here."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

# Platforms whose float64 has the exponents of float32 and no factorisations.
WITHOUT_FLOAT64 = ("tpu",)

_CHOSEN: ContextVar[tuple[Any, ...] | None] = ContextVar("devices", default=None)


@contextmanager
def made_for(devices: Sequence[Any]) -> Iterator[None]:
    """Let programs be made for some devices, described ones too.

    Functions that were traced before keep what they chose then: a described chip wants a process of its own.
    """
    token = _CHOSEN.set(tuple(devices))
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def local_devices() -> Sequence[Any]:
    """List the devices that programs are made for."""
    return _CHOSEN.get() or jax.local_devices()


@cache
def mesh_of(devices: tuple[Any, ...]) -> Mesh:
    """Put devices in a row; what runs on one talks to no other."""
    # Not jax.make_mesh, which wants a rectangle of a TPU's chips.
    return Mesh(np.array(devices), ("lanes",), axis_types=(AxisType.Auto,))


def platform() -> str:
    """Tell their kind: "cpu", "gpu" or "tpu"."""
    chosen = _CHOSEN.get()
    return jax.default_backend() if chosen is None else chosen[0].platform


def are_described() -> bool:
    """Tell whether they are only described, so that programs for them can be compiled but not run."""
    chosen = _CHOSEN.get()
    return chosen is not None and chosen[0].client.runtime_type == "compile_only_runtime"


def has_host() -> bool:
    """Tell whether what needs float64 runs on the host's CPU, beside what runs on this process's devices."""
    return jax.default_backend() in WITHOUT_FLOAT64


def is_host() -> bool:
    """Tell whether programs are made for the host's CPU in place of this process's devices."""
    return has_host() and platform() == "cpu"


@contextmanager
def float64() -> Iterator[None]:
    """Compute in float64, on the host's CPU where the devices lack it."""
    with ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        if platform() in WITHOUT_FLOAT64:
            host = jax.local_devices(backend="cpu")
            stack.enter_context(made_for(host))
            stack.enter_context(jax.default_device(host[0]))
        yield


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Compute in the precision of a study, with products of matrices that keep all digits."""
    with float64() if dtype == "float64" else jax.enable_x64(False), jax.default_matmul_precision("highest"):
        yield
