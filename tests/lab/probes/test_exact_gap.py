"""The gap that is proven in exact arithmetic, as a probe of a study."""

import subprocess
import sys

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import check_certificate


@pytest.fixture(scope="module", params=["span", "full"])
def results(request, tmp_path_factory):
    """Four seeds of a flow; in span coordinates, or in all dimensions because of a start that needs them."""
    folder = tmp_path_factory.mktemp("exact")
    probe = {"kind": "exact_gap", "nats": 10.0, "folder": str(folder / "proofs")}
    dim = 256 if request.param == "span" else 8
    study = ja.Study(
        name="exact",
        data={"kind": "assumption1", "vocab_size": 10, "relevant": 4, "length": 4, "sequences": 20},
        model=ja.models.OneLayer(dim=dim),
        phases=[
            {"name": "embed", "kind": "one_step", "step_size": 100.0},
            {"name": "flow", "kind": "exact_flow", "until_norm": 1e4, "points": 5},
        ],
        probes={"own": [probe, {"kind": "max_margin_direction", "nats": 10.0}]},
        dtype="float64",
        seeds=4,
    )
    return study.run(folder / "run", quiet=True), folder / "proofs"


def last(results, metric):
    return results.records.query(f"metric == '{metric}' and phase == 'flow'").groupby("seed").value.last()


@pytest.mark.more
def test_every_certificate_is_accepted_and_its_proven_gap_is_small(results):
    found, folder = results
    gap, floating = last(found, "proven_gap"), last(found, "duality_gap")
    feasible = last(found, "feasible") == 1
    assert (last(found, "accepted") == 1).all()
    assert feasible.any()
    assert (gap[feasible] < 1e-12).all()
    assert np.isnan(gap[~feasible]).all()
    assert (floating[feasible] < 1e-12).all()
    written = sorted(folder.glob("*.json"))
    assert len(written) == 4
    for path in written:
        run = [sys.executable, "-I", "-S", check_certificate.__file__, path]
        assert subprocess.run(run, capture_output=True, text=True).stdout.startswith("accepted: ")


@pytest.mark.more
def test_exact_gap_requires_phases_that_train_one_parameter(results):
    found, _ = results
    assert set(found.records.query("metric == 'accepted'").phase) == {"flow"}
