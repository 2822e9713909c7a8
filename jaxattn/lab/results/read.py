"""Read the tables in a results folder, and verify their checksums."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.results.drawn import DRAWN, read_captions
from jaxattn.lab.storage import batch_state, files, manifest
from jaxattn.lab.storage import tables as parquet
from jaxattn.lab.storage.batch_state import BatchState
from jaxattn.lab.storage.files import Damaged
from jaxattn.lab.storage.manifest import damage_as_input_error, resume_remedy
from jaxattn.lab.storage.tables import CELL_AND_SEED

RECORD_COLUMNS = ("cell", "seed", "phase", "step", "metric", "value")
TOKEN_COLUMNS = (
    "cell",
    "seed",
    "phase",
    "id",
    "token",
    "count",
    "class",
    "alpha",
    "posterior_difference",
    "Ep",
    "Ev",
)
_COLUMNS = {"records": RECORD_COLUMNS, "tokens": TOKEN_COLUMNS}


def read_results(directory: Path) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    """Read a results folder, without importing or executing code from it.

    Returns:
        Manifest, records and tokens; see `run.Run`. For an unfinished run, these contain all measurements
        of finished batches, those of other batches up to their last checkpoint, and all failures so far.

    Raises:
        InputError: the folder does not exist, is not a results folder, or contains no measurements yet; a
            file is damaged or belongs to another batch or config; or a row is duplicated.
    """
    known = manifest.read_manifest(directory)
    with damage_as_input_error(directory):
        tables = _merged(directory, known)
        if tables is None:
            found = _parts(directory, known)
            tables = {name: [read[name] for _, read in found] for name in _COLUMNS}
            failures = [failure for saved, _ in found for failure in saved.failures]
            status = "stopped" if known["status"] == "finished" else known["status"]
            known |= {"status": status, "failures": failures}
        records, tokens = (_joined(tables[name], name, directory, known) for name in _COLUMNS)
    if records.empty:
        raise InputError(f"{directory}: has no measurements yet; {resume_remedy(directory)}")
    return known, _without_failures(records, known), tokens


def _merged(directory: Path, known: Mapping[str, Any]) -> dict[str, list[pd.DataFrame]] | None:
    if known["status"] != "finished":
        return None
    paths = {name: directory / f"{name}.parquet" for name in known["sha256"]}
    if not paths or not all(path.exists() for path in paths.values()):
        return None
    found = {
        name: [parquet.read_table(paths[name], directory, known["sha256"][name])] if name in paths else []
        for name in _COLUMNS
    }
    planned = {
        (cell, seed) for batch in known["batches"] for cell in batch["cells"] for seed in batch["seeds"]
    }
    measured = set().union(*map(parquet.cell_seed_pairs, found["records"]))
    if planned and measured != planned:
        raise Damaged(f"{directory}: the cells and seeds of records.parquet differ from the manifest")
    return found


def _parts(directory: Path, known: Mapping[str, Any]) -> list[tuple[BatchState, dict[str, pd.DataFrame]]]:
    found, cells = [], {}
    for batch in batch_state.batches(directory):
        if read := batch_state.read_with_tables(directory, batch, batch_state.read_shown):
            if mismatch := batch_state.mismatch(directory, batch, read[0], known):
                raise Damaged(mismatch)
            found.append(read)
            cells[batch] = map(int, read[0].origin.cells)
    for first, second in batch_state.overlaps(cells):
        raise Damaged(f"{batch_state.path(directory, second)}: contains seeds that are also in {first}")
    return found


def _joined(tables: list[pd.DataFrame], name: str, directory: Path, known: Mapping[str, Any]) -> pd.DataFrame:
    """Validate and concatenate tables; raise Damaged if no run could have written their contents."""
    columns, path = _COLUMNS[name], directory / f"{name}.parquet"
    # A batch saved before its first measurement has tables without columns.
    tables = [table for table in tables if len(table)]
    cells, seeds = {entry["cell"] for entry in known["cells"]}, set(known["seeds"])
    for table in tables:
        if missing := [column for column in columns if column not in table]:
            raise Damaged(f"{path}: no column {missing[0]!r}")
        if strange := [column for column in columns if not _holds(table[column], column)]:
            raise Damaged(f"{path}: column {strange[0]!r} contains values other than {_kind(strange[0])}")
        for column, asked in (("cell", cells), ("seed", seeds)):
            if not asked.issuperset(table[column].unique()):
                raise Damaged(f"{path}: contains {column}s that are not in the manifest")
        if parquet.repeats(table, name):
            raise Damaged(f"{path}: contains two rows with the same {', '.join(parquet.TABLE_KEYS[name])}")
    if not tables:
        return pd.DataFrame(columns=list(columns))
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)


def _kind(column: str) -> str:
    if column in ("phase", "metric", "token"):
        return "texts"
    return "integers" if column in ("cell", "seed", "step", "id", "count", "class") else "numbers"


def _holds(values: pd.Series, column: str) -> bool:
    kind, of = _kind(column), values.dtype
    if kind == "integers":
        return bool(pd.api.types.is_integer_dtype(of))
    if kind == "numbers":
        return bool(pd.api.types.is_numeric_dtype(of) and not pd.api.types.is_complex_dtype(of))
    found = values.cat.categories if isinstance(of, pd.CategoricalDtype) else values
    return pd.api.types.infer_dtype(found, skipna=False) in ("string", "empty") and bool(values.notna().all())


def _without_failures(records: pd.DataFrame, manifest: Mapping[str, Any]) -> pd.DataFrame:
    # A run with NaN logits still has an accuracy, because it predicts a single class; exclude these
    # accuracies from means.
    phase, phases = pd.factorize(records["phase"])
    order = {name: number for number, name in enumerate(phases)}
    seeds = set(manifest["seeds"])
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for failure in manifest["failures"]:
        lane = failure["cell"], failure["seed"]
        if failure["phase"] in order and failure["seed"] in seeds:
            location = order[failure["phase"]], failure["step"]
            first[lane] = min(location, first.get(lane, location))
    if not first:
        return records
    rows = [(*lane, after, float(step)) for lane, (after, step) in first.items()]
    table = pd.DataFrame(rows, columns=[*CELL_AND_SEED, "after", "from"])
    found = records[list(CELL_AND_SEED)].merge(table, how="left", on=list(CELL_AND_SEED))
    after, start = found["after"].to_numpy(float), found["from"].to_numpy(float)
    failed = (phase > after) | ((phase == after) & (records["step"].to_numpy() >= start))
    return records.assign(value=records["value"].mask(failed))


def verify(directory: Path, progress: Callable[[str, float], None] = lambda name, share: None) -> list[str]:
    """Verify the checksums of all files in a results folder, without parsing the tables.

    Args:
        directory: the folder of a finished or unfinished run.
        progress: progress callback (batch, fraction completed).

    Returns:
        One line per damaged or missing file, with a remedy.

    Raises:
        InputError: the folder is not a results folder, or a file cannot be read.
    """
    found: list[str] = []
    known: Mapping[str, Any] | None = None
    fix = resume_remedy(directory)
    try:
        known = manifest.read_manifest(directory)
    except Damaged as error:
        found.append(str(error))
    batches, cells = batch_state.batches(directory), {}
    for number, batch in enumerate(batches):
        progress(batch, number / len(batches))
        faults, saved = _batch(Path(os.path.abspath(directory)), batch, known)
        found += [f"{mismatch}; {fix}" for mismatch in faults]
        if saved:
            cells[batch] = map(int, saved.origin.cells)
    for first, second in batch_state.overlaps(cells):
        found.append(f"{batch_state.path(directory, second)}: contains seeds that are also in {first}; {fix}")
    if known and known["status"] == "finished":
        planned = [batch["name"] for batch in known["batches"]]
        missing = [batch_state.path(directory, name) for name in planned if name not in batches]
        found += [f"{path}: missing; {fix}" for path in missing]
        tables = {directory / f"{name}.parquet": sha256 for name, sha256 in known["sha256"].items()}
        found += [f"{error}; {fix}" for error in _damaged(directory, tables)]
    return found + [f"{error}; draw it again with: jaxattn report {directory}" for error in _drawn(directory)]


def _batch(
    directory: Path, batch: str, known: Mapping[str, Any] | None
) -> tuple[list[str], BatchState | None]:
    """Return the faults and the state of a batch. If a run changes the state in the meantime, try again."""
    while True:
        try:
            saved = batch_state.read_shown(directory, batch)
        except Damaged as error:
            return [str(error)], None
        if saved is None:
            return [], None
        found = _of_state(directory, batch, saved, known)
        if not found or batch_state.read_shown(directory, batch) == saved:
            return found, saved


def _of_state(directory: Path, batch: str, saved: BatchState, known: Mapping[str, Any] | None) -> list[str]:
    from jaxattn.lab.storage import checkpoints  # imports JAX, which tables do not need

    mismatch = batch_state.mismatch(directory, batch, saved, known) if known else ""
    tables = {
        batch_state.table_path(directory, batch, table, sha256): sha256
        for table, sha256 in saved.tables.items()
    }
    found = [mismatch] * bool(mismatch) + [str(error) for error in _damaged(directory, tables)]
    try:
        if not found:
            batch_state.check_cells_and_seeds(directory, batch, saved)
    except Damaged as error:
        return [str(error)]
    try:
        folder = batch_state.checkpoint_path(directory, batch, saved.checkpoint.number)
        checkpoints.restore(folder, saved.checkpoint, directory)
    except Damaged as error:
        # A resumed run does not read the parameters of a finished batch, so the batch state must be deleted
        # first.
        first = f"; delete {batch_state.path(directory, batch)}" if saved.finished else ""
        found.append(f"{error}{first}")
    return found


def _drawn(directory: Path) -> Iterator[Damaged]:
    if not (directory / DRAWN).exists():
        return
    try:
        drawn = read_captions(directory)
    except Damaged as error:
        yield error
        return
    yield from _damaged(directory, {directory / name: sha256 for name, sha256 in drawn.sha256.items()})


def _damaged(directory: Path, sums: Mapping[Path, str]) -> Iterator[Damaged]:
    for path, sha256 in sums.items():
        try:
            files.check_file(path, directory, sha256)
        except Damaged as error:
            yield error
