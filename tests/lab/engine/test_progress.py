"""Progress messages of a run."""

import io
import sys
from types import SimpleNamespace

import pytest

from jaxattn.lab.engine import progress
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results.labels import duration


def test_progress_line_omits_unknown_values(monkeypatch, capsys):
    now = iter([1000.0, 1001.0, 1100.0, 1200.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with Reporter() as reporter:
        reporter.update("compiling")
        reporter.update("query step 1", 0.001)  # This update is too soon after the previous line.
        reporter.update("query step 400", 0.401, "loss 0.5", 150.0)
        reporter.update("query step 1,000", 1.0, "loss 0.1")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "         compiling",
        " 40.1 %  query step 400  loss 0.5, 2.5 min left",
        "100.0 %  query step 1,000  loss 0.1",
    ]


def test_loading_progress_is_shown_if_it_takes_over_a_second(monkeypatch, capsys):
    now = 1000.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    with Reporter() as reporter:
        for what, took in (("reading train", 5.0), ("laying out", 0.1), ("laying out", 0.1)):
            reporter.loading(what, 0, 2_000)
            now += took
            reporter.loading(what, 2_000, 2_000)
            now += 10.0
    assert capsys.readouterr().err.splitlines() == ["reading train: 2,000 of 2,000"]


def test_time_left_counts_down_between_updates(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    shown = progress._Left()
    task = SimpleNamespace(fields={"end": 1100.0})
    assert shown.render(task).plain == "100 s left"
    now = 1099.0
    assert shown.render(task).plain == "1 s left"
    now = 1101.0
    assert shown.render(task).plain == ""
    assert shown.render(SimpleNamespace(fields={"end": None})).plain == ""


def test_durations_are_formatted():
    assert [duration(x) for x in (3.4, 100.0, 150.0, 8000.0)] == ["3 s", "100 s", "2.5 min", "2.2 h"]


@pytest.mark.parametrize("error", [BrokenPipeError, OSError, ValueError])
def test_errors_on_writing_to_stderr_are_ignored(monkeypatch, error):
    class Gone(io.StringIO):
        def write(self, text):
            raise error("gone")

    monkeypatch.setattr(sys, "stderr", Gone())
    with Reporter() as reporter:
        reporter.note("a note")
        reporter.update("compiling")
        reporter.trace("data", "an error", "a trace")


def test_delayed_progress_is_not_shown_for_short_tasks(monkeypatch):
    now, said = [100.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    tell = progress.delayed(lambda what, share: said.append((what, share)))
    tell("early", 0.1)
    now[0] += 3
    tell("late", 0.5)
    assert said == [("late", 0.5)]
