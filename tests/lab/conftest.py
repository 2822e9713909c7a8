"""Synthetic results folders with planted laws: slope -1/2, E·v increasing, E·p U-shaped."""

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.storage import batch_record, memo, study_file
from jaxattn.lab.storage.batch_record import BatchCell, BatchRecord, Checkpoint, Device, Failure, Origin
from jaxattn.lab.storage.files import digest
from jaxattn.lab.storage.tables import cell_seed_pairs

WORDS = [
    "great",
    "bad",
    "worst",
    "no",
    "awful",
    "best",
    "love",
    "waste",
    "dull",
    "the",
    "of",
    "$5",
    "$10",
    "<br>",
]
METRICS = (
    "loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "p_norm",
    "log_gradient_norm",
    "important_mass",
)
STANDARD = (
    ja.probes.Fit,
    ja.probes.Accuracy,
    ja.probes.Importance,
    ja.probes.Selected,
    ja.probes.OneStepError,
    ja.probes.MaxMarginDirection,
)
BINS = 20
DIMS = [64, 128, 256, 512]
SLOPE = -0.5
STEP_SIZE = 200.0
STEPS = np.unique(np.r_[0, np.geomspace(1, 2000, 25).round().astype(int)])


EMPTY = {
    "records": pd.DataFrame(columns=["cell", "seed", "phase", "step", "metric", "value"]),
    "tokens": pd.DataFrame(),
}
# Facts that readers take from the records of batches.
OF_BATCHES = ("versions", "git_commit", "device", "started", "wall_time_s", "peak_memory_mib", "failures")


def key_of(cell):
    """Make a key from a cell of a study file."""
    text = json.dumps([cell["cell"], cell["settings"], cell.get("config_hash")])
    return digest(text.encode())[:32]


def made_origin(versions=None, git_commit=None, device=None, started="2025-01-01T00:00:00Z", width=1):
    """Describe how a batch was computed."""
    known = versions or {}
    return Origin(
        package={"version": known.get("jaxattn"), "commit": git_commit, "source": None},
        computing="0" * 16,
        code={},
        versions=known,
        device=Device(**(device or {})),
        pinned={},
        xla_flags="",
        width=width,
        started=started,
        command="jaxattn run x.toml",
    )


def write_batch(directory, cells, runs, content, *, failures=(), origin=None, writer=None, **record):
    """Write a batch with the given tables, and return its folder.

    `cells` contains cells of a study file, `runs` the cell and seed of each run. A batch with a `writer` is
    not finished.
    """
    made = BatchRecord(
        tuple(BatchCell(cell["cell"], cell["key"], cell["key"]) for cell in cells),
        tuple(runs),
        origin or made_origin(width=len(runs)),
        finished=writer is None,
        failures=msgspec.convert(list(failures), tuple[Failure, ...]),
        **{"checkpoint": Checkpoint({}, {})} | record,
    )
    folder = directory / memo.RUNS / (made.key + (f".partial-{writer}" if writer else ""))
    folder.mkdir(parents=True)
    sums = {}
    for name, table in content.items():
        written = table.to_parquet(None, index=False)
        (folder / made.table_name(name)).write_bytes(written)
        sums[name] = digest(written)
    batch_record.write_record(folder, msgspec.structs.replace(made, tables=sums), directory)
    return folder


def put(directory: Path, content: dict[str, pd.DataFrame], known: dict) -> Path:
    """Write a study and one finished batch with all its runs that are in the records."""
    cells = [{"key": key_of(cell)} | cell for cell in known["cells"]]
    study = {name: value for name, value in known.items() if name not in OF_BATCHES}
    study = {"format": batch_record.FORMAT, "command": "jaxattn run x.toml"} | study | {"cells": cells}
    directory.mkdir(parents=True, exist_ok=True)
    study_file.write_study(directory, study)
    runs = sorted(cell_seed_pairs(content["records"]))
    with_runs = [cell for cell in cells if cell["cell"] in {cell for cell, _ in runs}]
    facts = {name: known[name] for name in ("versions", "git_commit", "device", "started") if name in known}
    resources = {name: known[name] for name in ("wall_time_s", "peak_memory_mib") if name in known}
    failures = known.get("failures", ())
    origin = made_origin(**facts, width=len(runs))
    write_batch(directory, with_runs, runs, EMPTY | content, failures=failures, origin=origin, **resources)
    return directory


def change_batch(folder: Path, **changes) -> None:
    """Change the record of a batch."""
    record = batch_record.read_record(folder, folder.parents[1])
    batch_record.write_record(folder, msgspec.structs.replace(record, **changes), folder.parents[1])


def write_results(
    directory: Path,
    *,
    axes: dict[str, list] | None = None,
    seeds: int = 5,
    classes: int = 2,
    vocab_size: int = 2000,
    text: bool = True,
    shared: bool = True,
    failures: tuple[tuple[int, int, int], ...] = (),
    figures: tuple[dict, ...] = (),
    late: bool = False,
    **known,
) -> Path:
    """Write a folder; failures are (cell, seed, step) in phase joint."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = (
        [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        if axes
        else [{}]
    )
    records, tokens = [], []
    for cell, values in enumerate(settings):
        for seed in range(seeds):
            rng = np.random.default_rng([cell, seed])
            records += _records(
                cell, seed, values, rng, [f[2] for f in failures if f[:2] == (cell, seed)], late
            )
            tokens += _tokens(cell, seed, classes, vocab_size, text, shared, rng)
    columns = ["cell", "seed", "phase", "step", "metric", "value"]
    types = {"cell": "int32", "seed": "int32", "step": "int64"}
    tables = {
        "records": pd.DataFrame(records, columns=columns).astype(types),
        "tokens": pd.concat(tokens, ignore_index=True),
    }
    content = {
        "labels": {name: label for probe in STANDARD for name, label in probe.labels.items()},
        "scales": {
            name: [scale.kind, *(x if np.isfinite(x) else None for x in scale[1:])]
            for probe in STANDARD
            for name, scale in probe.scales.items()
        },
        "name": "planted",
        "description": "Planted laws <b>and</b> a little noise.",
        "command": "jaxattn run sweeps/planted.toml --set 'model.dim=64'",
        "config": {
            "name": "planted",
            "model": {"kind": "one_layer", "dim": 64},
            "phases": [
                {"kind": "one_step", "name": "embed", "step_size": STEP_SIZE, "train": ["E"]},
                {
                    "kind": "descent",
                    "name": "joint",
                    "optimizer": "adam",
                    "step_size": 1e-3,
                    "train": ["E", "p", "v"],
                },
            ],
            "figures": list(figures),
        },
        "config_hash": "0123456789abcdef",
        "cells": [{"cell": cell, "settings": values} for cell, values in enumerate(settings)],
        "seeds": list(range(seeds)),
        "versions": {"jaxattn": "0.1.0", "jax": "0.10.2", "numpy": "2.4.6"},
        "git_commit": "0" * 40,
        "device": {"platform": "cpu", "kind": "cpu", "count": 1},
        "dtype": "float32",
        "started": "2025-01-01T00:00:00Z",
        "wall_time_s": 83.25,
        "failures": [
            {"cell": c, "seed": s, "phase": "joint", "step": k, "reason": "loss is not finite"}
            for c, s, k in failures
        ],
    }
    if late:
        content["config"]["phases"].append(content["config"]["phases"][1] | {"name": "late"})
    return put(directory, tables, content | known)


def _records(cell, seed, settings, rng, failed, late):
    dim = settings.get("model.dim", 64)
    scale = np.exp(0.05 * rng.standard_normal())
    rows = [(cell, seed, "embed", step, "loss", 0.693 - 0.02 * step) for step in (0, 1)]
    rows += [(cell, seed, "embed", step, "p_norm", 1.0) for step in (0, 1)]
    rows.append((cell, seed, "embed", 1, "one_step_error", 3.2e-3 * scale * dim**SLOPE))
    rows.append((cell, seed, "embed", 1, "correlation_Ev_alpha", 0.991 + 0.001 * rng.standard_normal()))
    noise = rng.standard_normal(4)
    for step in STEPS:
        t = step * scale * dim**0.2 / 60
        values = (
            0.693 * np.exp(-t) + 0.02,
            1 - 0.5 * np.exp(-t) - 0.01,
            0.693 * np.exp(-t) + 0.28 + 0.02 * np.log1p(t) + 0.01 * noise[0],
            0.87 - 0.37 * np.exp(-1.3 * t) + 0.006 * noise[1],
            1 + 0.8 * np.log1p(3 * t) * (1 + 0.05 * noise[2]),
            -1.5 - 1.2 * np.log1p(4 * t) + 0.1 * noise[3],
            0.15 + 0.7 * (1 - np.exp(-t / 2)) * scale**0.3,
        )
        gone = any(step >= at for at in failed)
        for metric, value in zip(METRICS, values, strict=True):
            rows.append((cell, seed, "joint", step, metric, np.nan if gone else value))
        for b in range(BINS):
            x = -1 + (b + 0.5) * (29 / 15) / BINS
            rows.append(
                (cell, seed, "joint", step, f"Ev_bin_{b:02d}", np.nan if gone or b == 1 else 2 * x * t)
            )
    if late:
        rows += [
            (cell, seed, "late", step, name, v) for _, _, phase, step, name, v in rows if phase == "joint"
        ]
    return rows


def _tokens(cell, seed, classes, vocab_size, text, shared, rng):
    corpus = np.random.default_rng(7 if shared else [7, seed])
    count = np.maximum(corpus.zipf(1.6, vocab_size), 1).clip(max=200_000) * 45
    names = [WORDS[s] if s < len(WORDS) else f"word{s}" for s in range(vocab_size)]
    names = names if text else [str(s) for s in range(vocab_size)]
    columns = [1] if classes == 2 else list(range(classes))
    posterior = corpus.dirichlet(np.full(classes, 2.0 if text else 0.6), vocab_size)
    low = -1.0 if classes == 2 else -1 / (classes - 1)
    tables = []
    for phase in ("embed", "joint"):
        spread = np.abs(posterior - 1 / classes).max(axis=1) * classes
        Ep = (6 * spread**1.5 - 1 if phase == "joint" else 0) + rng.standard_normal(vocab_size)
        for k in columns:
            x = low + (1 - low) * posterior[:, k]
            alpha = x * count / count.sum()
            noise = rng.standard_normal(vocab_size)
            Ev = STEP_SIZE * alpha / (2 if classes == 2 else 1) + noise / 16
            tables.append(
                pd.DataFrame(
                    {
                        "cell": np.int32(cell),
                        "seed": np.int32(seed),
                        "phase": phase,
                        "id": np.arange(vocab_size, dtype=np.int32),
                        "token": names,
                        "count": count,
                        "class": np.int8(k),
                        "alpha": alpha,
                        "posterior_difference": x,
                        "Ep": Ep,
                        "Ev": Ev if phase == "embed" else 12 * x + 6 * x**3 + 2 * noise,
                    }
                )
            )
    return tables


class Batches(NamedTuple):
    """Functions for batches; see their docstrings."""

    write: Callable
    change: Callable


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """One folder of each kind that figures must support; tests must not write into them."""
    root = tmp_path_factory.mktemp("results")
    small = {"vocab_size": 60, "text": False, "shared": False}
    return {
        "text": write_results(root / "text", vocab_size=400, seeds=4),
        "one_seed": write_results(root / "one_seed", vocab_size=200, seeds=1, late=True),
        "dims": write_results(root / "dims", axes={"model.dim": DIMS}, seeds=6, **small),
        "classes": write_results(root / "classes", classes=3, vocab_size=300, seeds=2),
        "failed": write_results(
            root / "failed",
            axes={"data.kind": ["a", "b"], "model.dim": [64, 128], "phases.embed.step_size": [1.0, 100.0]},
            seeds=4,
            failures=((2, 1, 40), (2, 3, 0), (5, 0, 300)),
            **small,
        ),
    }


@pytest.fixture(scope="session")
def write():
    """The writer of synthetic results, for tests that modify a folder."""
    return write_results


@pytest.fixture(scope="session")
def load_planted(tmp_path_factory):
    """Write custom records and a manifest, and load them."""

    def make(rows, **known):
        records = pd.DataFrame(rows, columns=["cell", "seed", "phase", "step", "metric", "value"])
        return ja.load(put(tmp_path_factory.mktemp("planted"), {"records": records}, known))

    return make


@pytest.fixture(scope="session")
def configured():
    """Return a run with some tables of its config replaced."""

    def make(run, **tables):
        config = run.manifest["config"] | tables
        return dataclasses.replace(run, manifest=run.manifest | {"config": config})

    return make


@pytest.fixture(scope="session")
def batch_of():
    """Return the folder of the only batch of a results folder."""

    def find(folder):
        (found,) = (folder / memo.RUNS).iterdir()
        return found

    return find


@pytest.fixture(scope="session")
def rewrite(batch_of):
    """Replace a table of a folder with one batch, with its checksum."""

    def make(folder, name, table):
        batch = batch_of(folder)
        record = batch_record.read_record(batch, folder)
        content = table.to_parquet(None, index=False)
        (batch / record.table_name(name)).write_bytes(content)
        change_batch(batch, tables=record.tables | {name: digest(content)})

    return make


@pytest.fixture(scope="session")
def change_study():
    """Replace keys of a study file."""

    def make(folder, **changes):
        study_file.write_study(folder, study_file.read_study(folder) | changes)

    return make


@pytest.fixture(scope="session")
def batches():
    """The functions that write and change batches."""
    return Batches(write_batch, change_batch)


@pytest.fixture(scope="session")
def results(folders):
    return {name: ja.load(folder) for name, folder in folders.items()}
