"""Options shared by several commands, and parsers for their values."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from jaxattn.core.errors import InputError
from jaxattn.lab.storage.files import cache_folder
from jaxattn.lab.storage.folder import results_folder

if TYPE_CHECKING:
    from jaxattn.lab.api import Study


def _hint(default: str) -> str:
    return "" if default in ("", "None", "False") else f"(default: {default})"


def option(metavar: str | None = None, help: str | None = None, **settings: Any) -> Any:
    """Return the annotation of an option, whose help text shows a default only if there is one to show.

    Args:
        metavar: description of the value.
        help: help text.
        settings: keyword arguments of `tyro.conf.arg`.
    """
    return arg(metavar=metavar, help=help, help_behavior_hint=_hint, prefix_name=False, **settings)


Sweep = Annotated[Positional[Path], option("SWEEP", "Sweep file (TOML).")]
ResultsDir = Annotated[Positional[Path], option("DIR", "Results folder.")]
_FOLDERS = "One or more results folders, finished or not; a folder of shards selects all its shards."
Folders = Annotated[Positional[tuple[Path, ...]], option("DIR [DIR ...]", _FOLDERS)]
_Repeatable = UseAppendAction[tuple[str, ...]]
Set = Annotated[_Repeatable, option("KEY=VALUE", "Override a key of the sweep file.", name="set")]
Quiet = Annotated[bool, option(help="Print only results and errors.")]
Every = Annotated[bool, option(help="Print all metrics instead of six.", name="all")]
_EVERY_PATH = "Print all metrics instead of six, and the paths of all files of the report."
EveryPath = Annotated[bool, option(help=_EVERY_PATH, name="all")]
_JSON = "Print JSON instead of tables, with numbers in full precision."
Json = Annotated[bool, option(help=_JSON, name="json")]
_OUT = "Results folder, or an address in a bucket; by default results/NAME for the study NAME."
Out = Annotated[Path | None, option("DIR|s3://...|gs://...", _OUT)]
_SEEDS = "Number, range or list of seeds; overrides the sweep file."
Seeds = Annotated[str | None, option("N|A:B|A,B", _SEEDS)]
_MAX_MEMORY = "Memory limit of a device, for example 8GiB; by default chosen for the device."
MaxMemory = Annotated[str | None, option("SIZE", _MAX_MEMORY)]
_AXIS = "Sweep an additional key over a list of values."
Axis = Annotated[_Repeatable, option("KEY=[...]", _AXIS, name="axis")]


@dataclass(frozen=True)
class StudyOptions:
    """Options that modify the study."""

    overrides: Set = ()
    axes: Axis = ()
    seeds: Seeds = None


@dataclass(frozen=True)
class MachineOptions:
    """Options that determine where a study runs, and on how many machines.

    Attributes:
        shard: Compute only every N-th batch, starting from batch I. All shards use the same results folder.
    """

    out: Out = None
    max_memory: MaxMemory = None
    shard: Annotated[str, option("I/N")] = "1/1"


@dataclass(frozen=True)
class FailureOptions:
    """Options that control how failures are handled.

    Attributes:
        on_failure: What to do if a batch ends in NaN or raises an error: stop the run, continue with the next
            batch, or retry the batch from its start up to twice before continuing.
        reuse_code: Use finished runs with the same settings and data, but older code.
    """

    on_failure: Annotated[Literal["stop", "continue", "retry"], option()] = "continue"
    reuse_code: Annotated[bool, option()] = False


@dataclass(frozen=True)
class OutputOptions:
    """Options for printing and logging.

    Attributes:
        log: Also log the metrics to TensorBoard or Weights & Biases (offline).
        profile: Write a JAX trace of the run to DIR/profile, for TensorBoard or Perfetto.
    """

    every: EveryPath = False
    quiet: Quiet = False
    log: Annotated[tuple[Literal["tensorboard", "wandb"], ...], option("tensorboard|wandb")] = ()
    profile: Annotated[bool, option()] = False


def read_shard(text: str) -> tuple[int, int]:
    """Parse a shard "I/N" as (I, N)."""
    which, _, shards = text.partition("/")
    if not (which.isdecimal() and shards.isdecimal()):
        raise InputError(f"--shard {text}: expected I/N, for example --shard 1/4")
    return int(which), int(shards)


def read_size(text: str | None) -> int | None:
    """Convert a size such as "8GiB" to bytes; return None if `text` is None."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B", text.strip(), re.IGNORECASE)
    if not found:
        raise InputError(f"--max-memory {text}: expected a size, for example 8GiB or 500MiB")
    return int(float(found[1]) * 1024 ** ("KMGT".index(found[2].upper()) + 1))


def read_pair(option: str, text: str, example: str) -> tuple[str, str]:
    """Parse KEY=VALUE. On failure, the error message shows the option and an example."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise InputError(f"{option} {text}: expected KEY=VALUE, for example {option} {example}")
    return key.strip(), value.strip()


def read_two(option: str, text: str) -> tuple[str, str, str]:
    """Parse KEY=A,B as (KEY, A, B)."""
    key, _, values = text.partition("=")
    first, _, second = values.partition(",")
    if not (key.strip() and first.strip() and second.strip()):
        raise InputError(f"{option} {text}: expected KEY=A,B, for example {option} model.dim=64,512")
    return key.strip(), first.strip(), second.strip()


def read_folders(directories: tuple[Path, ...]) -> list[Path]:
    """Return the results folders of a command; raise InputError if there are none."""
    if not directories:
        raise InputError("expected at least one results folder, for example results/quickstart")
    return list(directories)


def require_local_folder(folder: Path | str) -> None:
    """Raise InputError if `folder` is a bucket URL, because the command can write only to local folders."""
    if (location := results_folder(folder)).is_remote:
        raise InputError(f"{location.name}: this command cannot write to a bucket; use a local folder")


def compiled_folder() -> Path:
    """Return the compilation cache folder."""
    return Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_folder() / "compiled")


def keep_compiled() -> None:
    """Enable JAX's compilation cache, so that later runs reuse compiled programs."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(compiled_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def load_sweep(sweep: Path, options: StudyOptions) -> "Study":
    """Load a sweep file, apply the options, validate the figure definitions, and return the study."""
    from jaxattn.lab.api import Study

    overrides, seeds = options.overrides, options.seeds
    if seeds is not None:
        text = f'"{seeds}"' if ":" in seeds else f"[{seeds}]" if "," in seeds else seeds
        overrides = (*overrides, f"seeds={text}")
    try:
        return Study.read(sweep, overrides, options.axes)
    except InputError as error:
        if seeds is None:
            raise
        raise InputError(re.sub("^--set seeds: ", "--seeds: ", str(error))) from None
