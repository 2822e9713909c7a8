"""Measurements as tables: records and tokens in long form, and lines of the log."""

from typing import Any

import numpy as np
import pandas as pd

from jaxattn.data.generators import Numbered
from jaxattn.data.splits import Loaded
from jaxattn.engine.batches import Batch
from jaxattn.errors import InputError
from jaxattn.probes.fit import BEST
from jaxattn.study.contract import NOT_REAL


def rows(measured: dict[str, np.ndarray], batch: Batch, phase: str, step: int) -> pd.DataFrame:
    """Lay out metrics of a probe, (L,) or (L, bins), in long form."""
    lanes = batch.lanes
    columns = {}
    for name, values in ((name, values[: len(lanes)]) for name, values in measured.items()):
        if np.iscomplexobj(values):
            raise InputError(f"probes: {name!r} is complex; {NOT_REAL}")
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}_{number:02d}": values[:, number] for number in range(values.shape[1])}
    metrics = len(columns)
    return pd.DataFrame(
        {
            "cell": np.repeat(np.array([cell.number for cell, _ in lanes], np.int32), metrics),
            "seed": np.repeat(np.array([seed for _, seed in lanes], np.int32), metrics),
            "phase": phase,
            "step": np.full(metrics * len(lanes), step, np.int64),
            "metric": pd.Index(list(columns)).take(np.tile(np.arange(metrics), len(lanes))),
            "value": np.stack(list(columns.values()), axis=1).astype(np.float64).ravel(),
        }
    )


def with_best(records: pd.DataFrame) -> pd.DataFrame:
    """Add `BEST` at every step of a phase: the test accuracy at its first step with the best accuracy so far
    on the test set, or on validation data where there are any.
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
    """Lay out token columns, (L, V) or (L, V, C), with one row for each lane, token of its own and class.

    Returns:
        The table; empty for a model whose tokens have no scores and values.
    """
    if not columns:
        return pd.DataFrame()
    lanes = batch.lanes
    _, vocab_size, classes = columns["Ev"].shape
    shape = (len(lanes), vocab_size, classes)
    ids = np.arange(vocab_size, dtype=np.int32)[None, :, None]
    # Only a padded vocabulary has tokens that are none of a lane's.
    sizes = [cell.setting.data.pads_vocabulary and cell.setting.data.vocab_size for cell, _ in lanes]
    used = np.array([size or vocab_size for size in sizes])
    own = np.broadcast_to(ids < used[:, None, None], shape)

    def spread(x: np.ndarray) -> np.ndarray:
        x = x[..., None] if x.ndim < 3 else x
        return np.broadcast_to(x[: len(lanes)], shape)[own]

    first_class = 1 if classes == 1 else 0
    return pd.DataFrame(
        {
            "cell": spread(np.array([cell.number for cell, _ in lanes], np.int32)[:, None, None]),
            "seed": spread(np.array([seed for _, seed in lanes], np.int32)[:, None, None]),
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


def seed_series(measured: dict[str, np.ndarray], batch: Batch, most: int = 32) -> dict[str, dict[str, float]]:
    """Collect the scalars of the first lanes by "cell C/seed S" and metric: a line each in dashboards."""
    return {
        f"cell {cell.number}/seed {seed}": {
            name: float(x[lane]) for name, x in measured.items() if x.ndim == 1 and np.isfinite(x[lane])
        }
        for lane, (cell, seed) in enumerate(batch.lanes[:most])
    }


def log_entry(
    measured: dict[str, np.ndarray], batch: Batch, place: dict[str, Any], failures: list
) -> dict[str, Any]:
    """One line of metrics.jsonl.

    Args:
        measured: metrics of a probe, (L,) or (L, bins).
        batch: whose.
        place: where it stands: phase, step, steps of the phase, share of the batch done.
        failures: its seeds that failed so far.

    Returns:
        All that, the median over the batch of every scalar, and the finite losses of every cell.
    """

    def median(x: np.ndarray) -> float | None:
        finite = x[np.isfinite(x)]
        return float(np.median(finite)) if finite.size else None

    scalars = {name: median(x) for name, x in measured.items() if x.ndim == 1}
    losses: dict[str, list[float]] = {str(cell.number): [] for cell in batch.cells}
    for (cell, _), loss in zip(batch.lanes, measured["loss"], strict=True):
        if np.isfinite(loss):
            # Lines are many, and are looked at only.
            losses[str(cell.number)].append(float(f"{loss:.6g}"))
    loss = {"loss": scalars["loss"], "losses": losses}
    return place | loss | {"metrics": scalars, "failures": failures}
