"""What is said of the time that is left."""

from types import SimpleNamespace

import pytest

from jaxattn.engine import progress
from jaxattn.engine.progress import Pace, Reporter


def test_the_first_step_of_a_part_compiles_and_is_not_timed():
    pace = Pace()
    assert pace.left("query", 0.001, now=100.0) is None
    assert pace.left("query", 0.101, now=101.0) == pytest.approx(8.99)
    # A second part compiles too; until it was timed, the first one tells.
    assert pace.left("joint", 0.5, now=400.0) == pytest.approx(5)
    assert pace.left("joint", 0.6, now=403.0) == pytest.approx(4 / 0.2 * 0.4)
    # The next batch compiles nothing.
    assert pace.left("query", 0.8, now=405.0) == pytest.approx(6 / 0.4 * 0.2)
    assert pace.left("query", 1.0, now=407.0) == 0


def test_time_without_progress_tells_nothing():
    pace = Pace()
    for now in (0.0, 50.0, 90.0):
        assert pace.left("", 0.0, now) is None
    assert pace.left("", 0.5, 91.0) == pytest.approx(1)


def test_other_work_begins_anew():
    pace = Pace()
    pace.left("query", 0.5, now=1.0)
    pace.left("query", 0.9, now=2.0)
    assert pace.left("query", 0.1, now=50.0) is None
    assert pace.left("query", 0.3, now=51.0) == pytest.approx(1 / 0.2 * 0.7)


def test_a_line_has_no_eta_before_steps_were_timed(monkeypatch, capsys):
    now = iter([1000.0, 1100.0, 1200.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with Reporter() as reporter:
        reporter.update("query step 1", 0.001, part="query")
        reporter.update("query step 400", 0.401, "loss 0.5", "query")
        reporter.update("query step 1,000", 1.0, "loss 0.1", "query")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "  0.1 %  query step 1",
        " 40.1 %  query step 400  loss 0.5, ETA 150 s",
        "100.0 %  query step 1,000  loss 0.1",
    ]
