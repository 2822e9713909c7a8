"""Measurements of a whole phase, and of its state, get the numeric settings of each run."""

import os
import signal
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja

DATA = {"kind": "independent", "vocab_size": 6, "relevant": 4, "length": 3, "sequences": 8}
PHASE = {
    "name": "train",
    "kind": "descent",
    "train": ["E"],
    "optimizer": "sgd",
    "step_size": 1.0,
    "steps": 2,
}


class Scaled(ja.PhaseProbe, frozen=True, kw_only=True):
    """Whole-phase probe whose metrics contain its own numbers, and those of the phase and the model."""

    scale: float = 1.0
    metrics: ClassVar[tuple[str, ...]] = (
        "step_size_seen",
        "scale_seen",
        "sharpness_seen",
        "runs_seen",
        "E_seen",
    )

    def observe(self, phase, state):
        return self.scale * phase.step_size

    def conclude(self, history, params, model, loaded):
        runs = np.ones(len(history))
        return {"step_size_seen": history / self.scale}, {
            "scale_seen": self.scale * runs,
            "sharpness_seen": model.sharpness * runs,
            "runs_seen": len(loaded.splits.train.targets) * runs,
            "E_seen": np.asarray(params["E"])[:, 0, 0],
        }


class Sharp(ja.Model):
    """Average of token values, times a number."""

    sharpness: float = 1.0
    parameters: ClassVar[tuple[str, ...]] = ("E",)

    def init(self, key, like, *, dtype):
        return {"E": np.ones((like.vocab_size, 1), dtype)}

    def outputs(self, params, data):
        return self.sharpness * (data.counts() @ params["E"])[:, 0]


class Stopping(Scaled):
    """The same probe, but the run is asked to stop while it concludes for the first time."""

    rotation_invariant: ClassVar[bool] = False
    calls: ClassVar[list[int]] = []

    def conclude(self, history, params, model, loaded):
        self.calls.append(len(history))
        if len(self.calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().conclude(history, params, model, loaded)


def first_entry(params, data):
    return {"E_first": params["E"][0, 0]}


@pytest.mark.more
def test_probes_of_phases_get_the_numbers_of_each_run(tmp_path):
    axes = {
        "probes.own.0.scale": [1.0, 3.0],
        "phases.train.step_size": [0.5, 0.25],
        "model.sharpness": [1.0, 2.0],
    }
    probes = {"tokens": False, "own": [Scaled(), first_entry]}
    study = ja.Study(name="t", seeds=2, data=DATA, model=Sharp(), phases=[PHASE], probes=probes, axes=axes)
    results = study.run(tmp_path / "run", quiet=True, report=False)
    assert len(list((tmp_path / "run" / "runs").iterdir())) == 1
    last = (
        results.records[results.records["step"] == 2]
        .set_index(["cell", "seed", "metric"])["value"]
        .sort_index()
    )
    for cell in results.cells.index:
        settings = results.settings(cell)
        for seed in (0, 1):
            own = last.loc[cell, seed]
            assert own["scale_seen"] == settings["probes.own.0.scale"]
            assert own["step_size_seen"] == settings["phases.train.step_size"]
            assert own["sharpness_seen"] == settings["model.sharpness"]
            assert own["E_seen"] == own["E_first"]
            # Two step sizes and two seeds have the same numbers in the model and in the probe.
            assert own["runs_seen"] == 4


def test_a_run_stops_between_probes_of_phases_and_resumes_there(tmp_path, capsys):
    study = ja.Study(
        name="t", data=DATA, model=Sharp(), phases=[PHASE], probes={"tokens": False, "own": [Stopping()]}
    )
    with pytest.raises(SystemExit) as stopped:
        study.run(tmp_path / "run", quiet=True, report=False)
    assert stopped.value.code == 143
    assert "0 of 1 batch finished, cell 0, seed 0 saved at step 2 of train" in capsys.readouterr().err
    found = study.run(tmp_path / "run", quiet=True, report=False)
    assert Stopping.calls == [1, 1]
    straight = study.run(tmp_path / "straight", quiet=True, report=False)
    pd.testing.assert_frame_equal(found.records, straight.records, check_exact=True)
