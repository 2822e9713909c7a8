"""Run compilers for chips in a separate process, because they modify JAX and may crash."""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import jax
from jax._src import xla_bridge
from jax.experimental import topologies

from chips.targets import Target, read_target
from jaxattn.core import backend
from jaxattn.core.errors import InputError, RunError

_NEEDED = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")}
# Environment variables that libtpu and XLA read at startup. Without a chip, libtpu must neither query
# metadata nor lock devices.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def check(target: Target) -> None:
    """Raise InputError if the compiler for a target is not installed or does not match the installed JAX."""
    needed = _NEEDED[target.platform]
    if missing := [name for name in needed if _version(name) is None]:
        raise InputError(
            f"target {target.name}: {', '.join(missing)} not installed; run in a separate environment: "
            "pip install -r benchmarks/chips/requirements.txt"
        )
    for name, wanted in _fitting(needed).items():
        if not f"{_version(name)}.".startswith(f"{wanted}."):
            raise InputError(
                f"target {target.name}: {name} {_version(name)} does not match jax {_version('jax')}; "
                f"pip install --no-deps '{name}=={wanted}.*'"
            )


def describe(target: Target) -> tuple[Any, ...]:
    """Return descriptions of the devices of a target.

    The process must have been started with `ENVIRONMENT`.

    Raises:
        InputError: the chip does not exist in this shape.
    """
    _take_cuda_for_a_platform()
    if target.platform == "gpu":
        how = {"platform": "cuda", "topology_name": target.name, "topology": target.topology}
        return tuple(topologies.get_topology_desc(**how, target_config=target.config).devices)
    axes = target.topology.partition(":")[2].split("x")
    # Each host has 2 × 2 chips or a single chip.
    across = 1 if set(axes) == {"1"} else 2
    bounds = {"chips_per_host_bounds": [across, across, 1]}
    try:
        return tuple(topologies.get_topology_desc(target.topology, "tpu", **bounds).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"target {target.name}: {reason}; give a shape such as v5e:2x2") from None


def _take_cuda_for_a_platform() -> None:
    """Make JAX load the CUDA plugin without a driver. There is no public interface for this."""
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
    """Return the required versions of packages by name.

    For libtpu, this is the version that jax pins. For CUDA plugins, it is the version of jaxlib.
    """
    fitting = {name: metadata.version("jaxlib") for name in needed if name.startswith("jax-")}
    for line in metadata.requires("jax") or ():
        if "libtpu" in needed and (pinned := re.match(r"libtpu==([\d.]+?)(?:\.\*)?;", line)):
            fitting["libtpu"] = pinned[1]
    return fitting


def call(
    target: Target,
    function: str,
    arguments: Mapping[str, Any],
    progress: Callable[[str, float], None] = lambda text, share: None,
) -> Any:
    """Call a function in a new process in which programs are compiled for a chip.

    Args:
        target: the chip.
        function: "module:name" of a function, which is called with the target, `progress`, and the arguments
            passed by name.
        arguments: JSON-serialisable arguments.
        progress: function that receives a message and the fraction done.

    Returns:
        The result of the function, decoded from JSON.

    Raises:
        InputError: the compiler is missing or does not match JAX, or the function raised InputError.
        RunError: the process ended without a result.
    """
    check(target)
    words = [sys.executable, __file__, target.name, function]
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as noise:
        with subprocess.Popen(
            words,
            env=kept | ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            encoding="utf-8",
        ) as process:
            reply = _talk(process, arguments, progress)
        if reply is None:
            noise.seek(0)
            lines = [line.strip() for line in noise if line.strip()] or ["it printed nothing"]
            raise RunError(f"target {target.name}: its compiler ended with {process.returncode}: {lines[-1]}")
    if "error" in reply:
        raise InputError(reply["error"])
    return reply["result"]


def _talk(
    process: Any, arguments: Mapping[str, Any], progress: Callable[[str, float], None]
) -> dict[str, Any] | None:
    """Send the arguments to a process, forward its progress messages, and return its reply.

    Returns None if the process ends without a reply.
    """
    try:
        process.stdin.write(json.dumps(arguments))
        process.stdin.close()
        for line in process.stdout:
            message = json.loads(line)
            if "progress" not in message:
                return message
            progress(*message["progress"])
    except BrokenPipeError:
        return None
    except BaseException:
        process.kill()
        raise
    return None


def main(name: str, function: str) -> None:
    """Call a function for a chip, and write its progress and result to standard output as lines of JSON.

    Any other standard output is redirected to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    target, arguments = read_target(name), json.load(sys.stdin)
    module, _, own = function.partition(":")
    try:
        with backend.compile_for(describe(target)):
            found = getattr(importlib.import_module(module), own)(
                target, lambda text, share: send({"progress": [text, share]}), **arguments
            )
    except InputError as error:
        send({"error": str(error)})
    else:
        send({"result": found})
    # A normal exit would make libtpu wait for a chip.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
