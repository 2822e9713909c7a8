"""Measurement tables for a batch: records and tokens in long form, failures, and log entries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jax import Array

from jaxattn.base import Phase
from jaxattn.core.errors import InputError
from jaxattn.data.from_function import Numbered
from jaxattn.data.splits import Loaded
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.probes.standard import BEST
from jaxattn.lab.study.output_checks import NOT_REAL

# Maximum number of vmapped runs that are plotted as separate lines in dashboards.
SERIES = 32


class Records:
    """Measurements and failed seeds of a batch.

    Attributes:
        failures: one dictionary per failed seed: its cell, seed, phase, step and reason.
    """

    def __init__(
        self, batch: Batch, so_far: Mapping[str, pd.DataFrame], failures: Sequence[dict[str, Any]]
    ) -> None:
        """Initialise the tables and failures with those stored in a checkpoint."""
        self.failures = list(failures)
        self._batch = batch
        # Concatenate only when writing, because concatenating at every step would take quadratic time.
        self._records, self._tokens = [so_far["records"]], [so_far["tokens"]]

    def add(self, phase: str, step: int, measured: Mapping[str, np.ndarray]) -> None:
        """Add the metrics measured at a step; each array is (L,) or (L, bins) for L runs."""
        self._records.append(rows(measured, self._batch, phase, step))

    def add_tokens(self, phase: str, columns: dict[str, np.ndarray], loaded: Loaded) -> None:
        """Add the token table measured at the end of a phase."""
        self._tokens.append(token_rows(columns, self._batch, phase, loaded))

    def note_failures(
        self, phase: Phase, step: int, failed_at: Array | np.ndarray, losses: Array | np.ndarray
    ) -> None:
        """Record the runs whose state reports a failure, and those whose loss at `step` is not finite."""
        before = {(failure["cell"], failure["seed"]) for failure in self.failures}
        runs = self._batch.runs
        failed_at = np.asarray(failed_at)[: len(runs)]
        failed_at = np.where((failed_at < 0) & ~np.isfinite(losses), step, failed_at)
        for (cell, seed), at in zip(runs, failed_at, strict=True):
            if at >= 0 and (cell.number, seed) not in before:
                location = {"cell": cell.number, "seed": seed, "phase": phase.name, "step": int(at)}
                self.failures.append(location | {"reason": phase.failure})

    def so_far(self) -> dict[str, pd.DataFrame]:
        """Return the tables of all measurements so far."""
        return {
            "records": pd.concat(self._records, ignore_index=True),
            "tokens": pd.concat(self._tokens, ignore_index=True),
        }

    def whole(self) -> dict[str, pd.DataFrame]:
        """Return the tables for a finished batch, sorted by cell."""
        so_far = self.so_far()
        return {
            "records": _by_cell(with_best(so_far["records"])),
            "tokens": _by_cell(so_far["tokens"]),
        }


def rows(measured: Mapping[str, np.ndarray], batch: Batch, phase: str, step: int) -> pd.DataFrame:
    """Convert metrics to long form. Each array is (L,) or (L, bins) for L runs."""
    runs = batch.runs
    columns = {}
    for name, values in ((name, values[: len(runs)]) for name, values in measured.items()):
        if np.iscomplexobj(values):
            raise InputError(f"probes: {name!r} is complex; {NOT_REAL}")
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}_{number:02d}": values[:, number] for number in range(values.shape[1])}
    metrics = len(columns)
    return pd.DataFrame(
        {
            "cell": np.repeat(np.array([cell.number for cell, _ in runs], np.int32), metrics),
            "seed": np.repeat(np.array([seed for _, seed in runs], np.int32), metrics),
            "phase": phase,
            "step": np.full(metrics * len(runs), step, np.int64),
            "metric": pd.Index(list(columns)).take(np.tile(np.arange(metrics), len(runs))),
            # A probe may return no metrics at a step, but np.stack requires at least one array.
            "value": np.stack(list(columns.values()), axis=1).astype(np.float64).ravel() if columns else [],
        }
    )


def with_best(records: pd.DataFrame) -> pd.DataFrame:
    """Add the metrics in `BEST` at every step of a phase.

    Each is the test accuracy at the step where the accuracy on the test or validation split was best so far.
    If several steps tie, the first is used.
    """
    if records.empty:
        return records
    keys = ["cell", "seed", "phase"]
    test = records[records["metric"] == "test_accuracy"].reset_index(drop=True)
    added = []
    for name, by in BEST.items():
        split = records.loc[records["metric"] == by, [*keys, "step", "value"]]
        if split.empty:
            continue
        both = test.merge(split, on=[*keys, "step"], suffixes=("", "_by"))
        groups = both.groupby(keys)["value_by"]
        best_before = groups.cummax().groupby([both[key] for key in keys]).shift()
        better = best_before.isna() | (both["value_by"] > best_before)
        chosen = both["value"].where(better).groupby([both[key] for key in keys]).ffill()
        added.append(both[test.columns].assign(metric=name, value=chosen))
    return pd.concat([records, *added], ignore_index=True)


def token_rows(columns: dict[str, np.ndarray], batch: Batch, phase: str, loaded: Loaded) -> pd.DataFrame:
    """Convert token columns, (L, V) or (L, V, C), to long form, with one row per run, token and class.

    The axes are L runs, V tokens and C classes. The table is empty if the model does not provide token scores
    and values.
    """
    if not columns:
        return pd.DataFrame()
    runs = batch.runs
    _, vocab_size, classes = columns["Ev"].shape
    shape = (len(runs), vocab_size, classes)
    ids = np.arange(vocab_size, dtype=np.int32)[None, :, None]
    # Only a padded vocabulary contains unused tokens.
    sizes = [cell.setting.data.pads_vocabulary and cell.setting.data.vocab_size for cell, _ in runs]
    used = np.array([size or vocab_size for size in sizes])
    own = np.broadcast_to(ids < used[:, None, None], shape)

    def spread(x: np.ndarray) -> np.ndarray:
        x = x[..., None] if x.ndim < 3 else x
        return np.broadcast_to(x[: len(runs)], shape)[own]

    first_class = 1 if classes == 1 else 0
    return pd.DataFrame(
        {
            "cell": spread(np.array([cell.number for cell, _ in runs], np.int32)[:, None, None]),
            "seed": spread(np.array([seed for _, seed in runs], np.int32)[:, None, None]),
            "phase": phase,
            "id": spread(ids),
            "token": np.array(loaded.tokens or Numbered(vocab_size), object)[spread(ids)],
            "count": spread(columns["count"]).astype(np.int64),
            "class": spread(np.arange(first_class, first_class + classes, dtype=np.int32)[None, None]),
            **{
                name: spread(columns[name]).astype(np.float64)
                for name in ("alpha", "posterior_difference", "Ep", "Ev")
            },
        }
    )


def seed_series(measured: Mapping[str, np.ndarray], batch: Batch) -> dict[str, dict[str, float]]:
    """Return the scalar metrics of the first `SERIES` runs, for dashboards.

    The outer keys are "cell C/seed S"; the inner keys are metric names. Non-finite values are omitted.
    """
    return {
        f"cell {cell.number}/seed {seed}": {
            name: float(x[run]) for name, x in measured.items() if x.ndim == 1 and np.isfinite(x[run])
        }
        for run, (cell, seed) in enumerate(batch.runs[:SERIES])
    }


def log_entry(measured: Mapping[str, np.ndarray], batch: Batch, failures: Sequence[Any]) -> dict[str, Any]:
    """Summarise measurements for metrics.jsonl. Each array is (L,) or (L, bins) for L runs.

    Returns:
        The median of each scalar metric over the batch, the finite losses by cell, and the failures.
    """

    def median(x: np.ndarray) -> float | None:
        finite = x[np.isfinite(x)]
        return float(np.median(finite)) if finite.size else None

    scalars = {name: median(x) for name, x in measured.items() if x.ndim == 1}
    losses: dict[str, list[float]] = {str(cell.number): [] for cell in batch.cells}
    for (cell, _), loss in zip(batch.runs, measured["loss"], strict=True):
        if np.isfinite(loss):
            # Round to keep the log small; the values are only displayed.
            losses[str(cell.number)].append(float(f"{loss:.6g}"))
    return {"loss": scalars["loss"], "losses": losses, "metrics": scalars, "failures": list(failures)}


def _by_cell(table: pd.DataFrame) -> pd.DataFrame:
    in_order = table.empty or table["cell"].is_monotonic_increasing
    return table if in_order else table.sort_values("cell", kind="stable", ignore_index=True)
