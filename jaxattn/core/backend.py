"""Devices for which programs are compiled, and the JAX options used by all studies."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxattn.core.errors import InputError, first_line

# Platforms whose float64 has only the exponent range of float32 and does not support matrix factorisations.
WITHOUT_FLOAT64 = ("tpu",)

# JAX options pinned to the values that studies require; other values could change results or make correct
# programs fail. JAX also reads these options from environment variables, such as JAX_DEFAULT_PRNG_IMPL.
PINNED: Mapping[str, Any] = {
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_softmax_custom_jvp": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_legacy_prng_key": "allow",
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
    "jax_debug_nans": False,  # a run records which seeds fail, and at which step
    "jax_debug_infs": False,
    "jax_debug_key_reuse": False,
    "jax_transfer_guard": "allow",
    "jax_disable_jit": False,
}

_INSTALL = {
    "cuda": ', or set it to "cuda,cpu", or install the plugin with pip install "jaxattn[cuda]"',
    "tpu": ', or install the plugin with pip install "jaxattn[tpu]"',
}
_CHOSEN: ContextVar[tuple[Any, ...] | None] = ContextVar("devices", default=None)


@contextmanager
def compile_for(devices: Sequence[Any]) -> Iterator[None]:
    """Context manager that compiles for the given devices, which may be descriptions of an unavailable chip.

    Functions that have already been traced keep their devices, so use a separate process to compile for an
    unavailable chip.
    """
    token = _CHOSEN.set(tuple(devices))
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def local_devices() -> Sequence[Any]:
    """Return the devices for which programs are compiled."""
    return _CHOSEN.get() or _started_devices()


def _started_devices() -> Sequence[Any]:
    """Return the devices of this process, and start them if necessary.

    Raises:
        InputError: JAX cannot start a platform.
    """
    try:
        return jax.local_devices()
    # If a known plugin is not installed, JAX raises an AssertionError without a message.
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error).partition(" (set JAX_PLATFORMS")[0] if str(error) else "not installed"
        asked = jax.config.jax_platforms  # type: ignore[attr-defined]
        if not asked:
            raise InputError(f"JAX cannot start a device ({reason}); check its driver") from None
        remedy = f"unset JAX_PLATFORMS{_INSTALL.get(asked, '')}"
        raise InputError(f"JAX_PLATFORMS: JAX cannot start {asked!r} ({reason}); {remedy}") from None


@cache
def mesh_of(devices: tuple[Any, ...]) -> Mesh:
    """Return a one-dimensional mesh of the given devices."""
    # `jax.make_mesh` would require TPU chips to be arranged in a rectangle.
    return Mesh(np.array(devices), ("runs",), axis_types=(AxisType.Auto,))


def platform() -> str:
    """Return the platform for which programs are compiled: "cpu", "gpu" or "tpu"."""
    chosen = _CHOSEN.get()
    return _default_platform() if chosen is None else chosen[0].platform


def _default_platform() -> str:
    _started_devices()
    return jax.default_backend()


def are_described() -> bool:
    """Return whether the devices are only descriptions, so that programs can be compiled but not run."""
    chosen = _CHOSEN.get()
    return chosen is not None and chosen[0].client.runtime_type == "compile_only_runtime"


def has_host() -> bool:
    """Return whether float64 runs on the host's CPU because the devices do not support it."""
    return _default_platform() in WITHOUT_FLOAT64


def is_host() -> bool:
    """Return whether programs are compiled for the host's CPU because the accelerator lacks float64."""
    return has_host() and platform() == "cpu"


@contextmanager
def pinned() -> Iterator[None]:
    """Context manager that sets the JAX options in `PINNED`, overriding the environment and the caller."""
    with ExitStack() as stack:
        for name, value in PINNED.items():
            stack.enter_context(_option(name, value))
        yield


def _option(name: str, value: Any) -> AbstractContextManager[Any]:
    manager = getattr(jax, name.removeprefix("jax_"), None)
    return _set_option(name, value) if manager is None else manager(value)


@contextmanager
def _set_option(name: str, value: Any) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


@contextmanager
def float64() -> Iterator[None]:
    """Context manager for float64 with the `PINNED` options, on the host's CPU if devices lack float64."""
    with ExitStack() as stack:
        stack.enter_context(pinned())
        stack.enter_context(jax.enable_x64(True))
        if platform() in WITHOUT_FLOAT64:
            host = jax.local_devices(backend="cpu")
            stack.enter_context(compile_for(host))
            stack.enter_context(jax.default_device(host[0]))
        yield


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Context manager for the study's dtype, full-precision matrix products and the options in `PINNED`.

    Raises:
        InputError: JAX cannot start a platform.
    """
    local_devices()
    double = dtype == "float64"
    with pinned(), float64() if double else jax.enable_x64(False), jax.default_matmul_precision("highest"):
        yield
