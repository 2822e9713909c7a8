"""The compilers of chips: whether they are installed and fit the installed jax, and what they describe."""

import re
from importlib import metadata
from typing import Any

from jaxattn.chips.targets import Target
from jaxattn.errors import InputError

_NEEDED = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")}
# What libtpu and XLA read when they start; a described chip asks no metadata server and locks no device.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def check(target: Target) -> None:
    """Raise InputError if a target's compiler is not installed, or does not fit the installed jax."""
    needed = _NEEDED[target.platform]
    if missing := [name for name in needed if _version(name) is None]:
        raise InputError(
            f"target {target.name}: {', '.join(missing)} not installed; in an environment of its own: "
            "pip install 'jaxattn[aot]'"
        )
    for name, wanted in _fitting(needed).items():
        if not f"{_version(name)}.".startswith(f"{wanted}."):
            raise InputError(
                f"target {target.name}: {name} {_version(name)} does not fit jax {_version('jax')}; "
                f"pip install --no-deps '{name}=={wanted}.*'"
            )


def describe(target: Target) -> tuple[Any, ...]:
    """Describe the devices of a target.

    To be called in a process that was started with `ENVIRONMENT`.

    Raises:
        InputError: a shape that the chip cannot have.
    """
    import jax
    from jax.experimental import topologies

    _take_cuda_for_a_platform()
    if target.platform == "gpu":
        how = {"platform": "cuda", "topology_name": target.name, "topology": target.topology}
        return tuple(topologies.get_topology_desc(**how, target_config=target.config).devices)
    axes = target.topology.partition(":")[2].split("x")
    # A host holds 2 × 2 chips, or one of a single chip.
    across = 1 if set(axes) == {"1"} else 2
    bounds = {"chips_per_host_bounds": [across, across, 1]}
    try:
        return tuple(topologies.get_topology_desc(target.topology, "tpu", **bounds).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"target {target.name}: {reason}; give a shape such as v5e:2x2") from None


def _take_cuda_for_a_platform() -> None:
    """Let jax look up the plugin of CUDA although no driver is here; it has no public way to."""
    from jax._src import xla_bridge

    known = xla_bridge.canonicalize_platform

    def with_cuda(platform: str) -> str:
        return "cuda" if platform in ("gpu", "cuda") else known(platform)

    xla_bridge.canonicalize_platform = with_cuda


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _fitting(needed: tuple[str, ...]) -> dict[str, str]:
    """Tell which versions fit the installed jax: libtpu by jax's own metadata, the plugin like jaxlib."""
    fitting = {name: metadata.version("jaxlib") for name in needed if name.startswith("jax-")}
    for line in metadata.requires("jax") or ():
        if "libtpu" in needed and (pinned := re.match(r"libtpu==([\d.]+?)(?:\.\*)?;", line)):
            fitting["libtpu"] = pinned[1]
    return fitting
