"""The exact flow as a phase with more than two classes."""

import numpy as np
import pytest

import jaxattn as ja


@pytest.mark.slow
def test_three_class_flow_reaches_its_certified_limit(tmp_path):
    data = ja.data.Assumption1(vocab_size=12, relevant=6, length=4, sequences=30, num_classes=3)
    phases = [
        ja.dynamics.OneStep(name="step", train=("E",), step_size=20.0),
        ja.dynamics.ExactFlow(name="flow", until_norm=1e4, points=9),
    ]
    study = ja.Study(
        name="classes",
        data=data,
        model=ja.models.OneLayer(dim=16),
        phases=phases,
        seeds=2,
        dtype="float64",
        probes={"own": ["flow_limit"]},
    )
    results = study.run(tmp_path / "out", quiet=True)
    ends = results.records[results.records["step"] == 8].pivot_table(
        index="seed", columns="metric", values="value"
    )
    np.testing.assert_allclose(ends["p_norm"], 1e4, rtol=1e-6)
    assert (ends["came_to_end"] == 1).all()
    assert (ends["limit_feasible"] == 1).all()
    assert (ends["limit_one_minus_cosine"] < 1e-4).all()
    # The loss at chance is log 3.
    assert (ends["loss"] < 1.0).all()
