"""Tables of measurements."""

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.engine.records import rows, with_best


def test_complex_metric_raises(study):
    batch = Batch(None, tuple((cell, 3) for cell in study().cells))
    assert rows({"turn": np.array([2.0])}, batch, "query", 1)["value"].tolist() == [2.0]
    with pytest.raises(
        ja.InputError, match=r"^probes: 'turn' is complex; metrics must be real; return its real and"
    ):
        rows({"turn": np.array([1j])}, batch, "query", 1)


def test_probe_without_metrics_has_no_rows(study):
    batch = Batch(None, tuple((cell, 3) for cell in study().cells))
    assert rows({}, batch, "query", 1).empty


def test_best_test_accuracy_is_selected_on_test_or_validation_data(rng):
    runs = [(cell, seed, phase) for cell in (0, 1) for seed in (0, 3) for phase in ("b", "a")]
    rows, expected = [], {}
    for lane in runs:
        # Coarse accuracies tie; the first of equal steps is selected.
        names = ("test_accuracy", "validation_accuracy", "loss")
        curves = {name: rng.integers(0, 4, 9) / 4 for name in names}
        rows += [(*lane, step, name, x) for name, curve in curves.items() for step, x in enumerate(curve)]
        for on in ("test", "validation"):
            for step in range(9):
                best = np.argmax(curves[f"{on}_accuracy"][: step + 1])
                expected[(*lane, step, f"test_accuracy_best_on_{on}")] = curves["test_accuracy"][best]
    keys = ["cell", "seed", "phase", "step", "metric"]
    records = pd.DataFrame(rows, columns=[*keys, "value"]).sort_values("step", kind="stable")
    found = with_best(records)
    pd.testing.assert_frame_equal(found[: len(records)], records.reset_index(drop=True))
    assert found[len(records) :].set_index(keys)["value"].to_dict() == expected
    only = with_best(records[records["metric"] != "validation_accuracy"])
    assert set(only["metric"]) == {"test_accuracy", "loss", "test_accuracy_best_on_test"}
    assert len(with_best(records[records["metric"] == "loss"])) == len(runs) * 9
