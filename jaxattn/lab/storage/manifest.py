"""Manifest of a results folder: a description of the run, and instructions for repairing or resuming it."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from jaxattn.core.errors import InputError
from jaxattn.core.settings import Count, NotNegative, PositiveInt, Share
from jaxattn.lab.storage import batch_state, files
from jaxattn.lab.storage.batch_state import Failure
from jaxattn.lab.storage.files import Damaged

MANIFEST = "manifest.json"
MAX_BINS = 10_000
# Version of the file format. Increase it when the contents of results folders change.
FORMAT = 5
REBUILD = "run the same sweep again in this folder to rebuild it from its batches"
NOT_A_RUN = "use a folder written by `jaxattn run`"


class _Cell(msgspec.Struct):
    """One cell: its number, its axis values, and the hash of the settings that determine its results.

    `hold` lists the sources of randomness that are fixed to seed 0, and `varies` those that vary with the
    seed. `extends` maps the config hash of each shorter run that the cell extends to its number of steps.
    """

    cell: Count
    settings: dict[str, int | float | str | bool]
    config_hash: str | None = None
    hold: tuple[str, ...] = ()
    varies: tuple[str, ...] = ()
    extends: dict[str, Count] = {}


BatchName = Annotated[str, msgspec.Meta(pattern=rf"^{batch_state.BATCH_NAME.pattern}$")]


class _Batch(msgspec.Struct):
    name: BatchName
    cells: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    seeds: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]


class Error(msgspec.Struct):
    """Batch that raised an error, with its cells and the reason."""

    batch: BatchName
    cells: tuple[int, ...]
    reason: str


class _Phase(msgspec.Struct):
    name: str


class _Probes(msgspec.Struct):
    """Probe settings used by figures and caveats."""

    bins: Annotated[int, msgspec.Meta(ge=0, le=MAX_BINS)] | None = None
    low: float | None = None
    high: float | None = None
    min_count: Count | None = None
    important: Share | None = None


class Config(msgspec.Struct):
    """The tables of the study's config that readers validate."""

    phases: tuple[_Phase, ...]
    probes: _Probes = msgspec.field(default_factory=_Probes)
    figures: tuple[dict[str, Any], ...] = ()


class Device(msgspec.Struct):
    """The devices used in a run."""

    platform: str = ""
    kind: str = ""
    count: PositiveInt = 1


class Manifest(msgspec.Struct):
    """The validated part of the manifest. Readers ignore all other keys."""

    name: str
    command: str | tuple[str, ...]
    config: Config
    cells: Annotated[tuple[_Cell, ...], msgspec.Meta(min_length=1)]
    seeds: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    format: int
    status: str = "stopped"
    description: str = ""
    config_hash: str | None = None
    shard: tuple[PositiveInt, PositiveInt] = (1, 1)
    widths: tuple[PositiveInt, ...] = ()
    batches: tuple[_Batch, ...] = ()
    elsewhere: tuple[BatchName, ...] = ()
    failures: tuple[Failure, ...] = ()
    errors: tuple[Error, ...] = ()
    sha256: dict[Literal["records", "tokens"], str] = {}
    labels: dict[str, str] = {}
    scales: dict[str, tuple[Literal["linear", "log", "yes/no"], float | None, float | None]] = {}
    code: dict[str, str | None] = {}
    versions: dict[str, str | None] = {}
    git_commit: str | None = None
    made_by: tuple[dict[str, str | None], ...] = ()
    device: Device = msgspec.field(default_factory=Device)
    continued_on: tuple[Device, ...] = ()
    pinned: dict[str, bool | int | str] = {}
    xla_flags: str = ""
    dtype: str | None = None
    started: str | None = None
    wall_time_s: NotNegative = 0.0
    peak_memory_mib: NotNegative | None = None


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read a results folder's manifest, like `find_manifest`, but raise InputError if there is none."""
    if (found := find_manifest(directory)) is not None:
        return found
    missing = "no manifest.json, so not a results folder" if directory.is_dir() else "no such folder"
    raise InputError(f"{directory}: {missing}; use a folder written by `jaxattn run`")


def find_manifest(directory: Path) -> dict[str, Any] | None:
    """Read and validate a manifest; return None if the folder contains neither a manifest nor a batch.

    Raises:
        Damaged: the manifest differs from what was written, or is missing although there are batches.
        InputError: the file cannot be read, or is not a manifest.
    """
    path = directory / MANIFEST
    try:
        text = files.read_file(path, directory, maximum=files.MAX_JSON)
    except Damaged as error:
        if not path.exists() and not batch_state.batches(directory):
            return None
        raise Damaged(f"{error}; {REBUILD}") from None
    try:
        content = files.unsealed(files.parse_json(text))
    except ValueError as error:
        raise Damaged(f"{path}: damaged ({error}); {REBUILD}") from None
    return _checked(path, content)


def _checked(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    try:
        checked = msgspec.convert(content, Manifest)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise InputError(f"{path}: {error}; {NOT_A_RUN}") from None
    if checked.format != FORMAT:
        raise InputError(
            f"{path}: written by another version of jaxattn; read it with that version, or run the sweep "
            "again into another folder"
        )
    cells = {entry.cell for entry in checked.cells}
    named = {entry.cell for entry in checked.failures}
    named.update(cell for batch in checked.batches for cell in batch.cells)
    named.update(cell for error in checked.errors for cell in error.cells)
    if unknown := named - cells:
        raise InputError(f"{path}: refers to unknown cell {min(unknown)}; {NOT_A_RUN}")
    if fault := _inconsistent(checked):
        raise InputError(f"{path}: {fault}; {NOT_A_RUN}")
    return {key: content.get(key, default) for key, default in msgspec.to_builtins(checked).items()}


def _inconsistent(checked: Manifest) -> str:
    if len({entry.cell for entry in checked.cells}) < len(checked.cells):
        return "a cell is listed twice"
    if len(set(checked.seeds)) < len(checked.seeds):
        return "a seed is listed twice"
    for batch in checked.batches:
        cells, seeds = batch_state.spans(batch.name)
        ends = (cells.start, cells.stop - 1)
        if batch.seeds != tuple(seeds) or (min(batch.cells), max(batch.cells)) != ends:
            return f"{batch.name} is listed with cells or seeds of another batch"
        if not set(batch.seeds).issubset(checked.seeds):
            return f"{batch.name} has a seed that is not in the list of seeds"
    for first, second in batch_state.overlaps({batch.name: batch.cells for batch in checked.batches}):
        return f"{first} and {second} have the same seed of the same cell"
    return ""


def write_manifest(directory: Path, content: Mapping[str, Any]) -> None:
    """Replace the manifest; raise OSError if it cannot be written."""
    files.write_file(directory / MANIFEST, files.sealed(content, indent=2), directory)


def run_command(manifest: Mapping[str, Any]) -> str:
    """Return the command recorded in a manifest. The command is untrusted input."""
    given = manifest["command"]
    return given if isinstance(given, str) else shlex.join(given)


def resume_remedy(directory: Path) -> str:
    """Return an instruction for repairing or resuming a run. It contains nothing read from the folder."""
    return f"run the same sweep again into {directory}"


@contextmanager
def damage_as_input_error(directory: Path) -> Iterator[None]:
    """Inside the `with` block, convert Damaged to InputError, and add repair instructions to the message."""
    try:
        yield
    except Damaged as error:
        raise InputError(f"{error}; {resume_remedy(directory)}") from None
