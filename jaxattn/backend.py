"""Which devices programs are made for: those of this process, or those of a chip that is not here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

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


def platform() -> str:
    """Tell their kind: "cpu", "gpu" or "tpu"."""
    chosen = _CHOSEN.get()
    return jax.default_backend() if chosen is None else chosen[0].platform


def are_described() -> bool:
    """Tell whether they are only described, so that programs for them can be compiled but not run."""
    chosen = _CHOSEN.get()
    return chosen is not None and chosen[0].client.runtime_type == "compile_only_runtime"
