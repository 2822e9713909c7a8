"""Synthetic results folders with planted laws: slope -1/2, E·v increasing, E·p U-shaped."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxattn.lab.probes import Accuracy, Fit, Importance, MaxMarginDirection, OneStepError, Selected
from jaxattn.lab.results import load
from jaxattn.lab.storage import manifest as manifests
from jaxattn.lab.storage.files import digest

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
STANDARD = (Fit, Accuracy, Importance, Selected, OneStepError, MaxMarginDirection)
BINS = 20
DIMS = [64, 128, 256, 512]
SLOPE = -0.5
STEP_SIZE = 200.0
STEPS = np.unique(np.r_[0, np.geomspace(1, 2000, 25).round().astype(int)])


def put(directory: Path, tables: dict[str, pd.DataFrame], known: dict) -> Path:
    """Write tables into a folder, and a manifest with their checksums."""
    sums = {}
    for name, table in tables.items():
        content = table.to_parquet(None, index=False)
        (directory / f"{name}.parquet").write_bytes(content)
        sums[name] = digest(content)
    whole = {"format": manifests.FORMAT, "status": "finished", "command": "jaxattn run x.toml"} | known
    manifests.write_manifest(directory, whole | {"sha256": known.get("sha256", {}) | sums})
    return directory


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
    **manifest,
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
    return put(directory, tables, content | manifest)


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
        return load(put(tmp_path_factory.mktemp("planted"), {"records": records}, known))

    return make


@pytest.fixture(scope="session")
def configured():
    """Return a run with some tables of its config replaced."""

    def make(run, **tables):
        config = run.manifest["config"] | tables
        return dataclasses.replace(run, manifest=run.manifest | {"config": config})

    return make


@pytest.fixture(scope="session")
def rewrite():
    """Replace a table of a folder, with its checksum."""

    def make(folder, name, table):
        put(folder, {name: table}, manifests.read_manifest(folder))

    return make


@pytest.fixture(scope="session")
def results(folders):
    return {name: load(folder) for name, folder in folders.items()}
