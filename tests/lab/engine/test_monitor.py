"""Monitor of a run: time left, intervals of checkpoints, and resources."""

import os
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from jaxattn.lab.engine import monitor
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.engine.monitor import Intervals, RunMonitor
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.study.groups import compile_groups


class Shown(Reporter):
    """Reporter that keeps its updates."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines, self.states = [], []

    def update(self, description, fraction=None, state="", remaining=None):
        self.lines.append((description, fraction, remaining))
        self.states.append(state)


class Run:
    """Monitor with a simulated clock, and three batches of a study of two phases, embed and query."""

    def __init__(self, monkeypatch, study, **intervals):
        self.now = 1000.0
        read = SimpleNamespace(monotonic=self.read, perf_counter=self.read, time=self.read)
        monkeypatch.setattr(monitor, "time", read)
        (group,) = compile_groups(study.cells)
        (cell,) = group.cells
        self.batches = [Batch(group, ((cell, k), (cell, k + 1))) for k in (0, 2, 4)]
        self.reporter, self.entries = Shown(), []
        write = lambda entry, series: self.entries.append(entry)  # noqa: E731
        self.monitor = RunMonitor(self.reporter, write, Intervals(**intervals))
        self.monitor.expect(self.batches)

    def read(self):
        return self.now

    def step(self, steps, seconds):
        with self.monitor.stepping(steps):
            self.now += seconds

    def measure(self, seconds, **metrics):
        self.now += seconds
        self.monitor.record({"metrics": {"loss": 0.5, **metrics}}, {})

    def embed(self):
        self.monitor.begin_phase(0, [0, 1], 0)
        self.now += 5
        self.step(1, 1.0)
        self.monitor.end_phase()


@pytest.fixture
def run(monkeypatch, study):
    return Run(monkeypatch, study())


def test_progress_names_the_step_of_a_loss_that_was_measured_before(run):
    run.monitor.begin_batch(run.batches[0], 0, 3)
    run.monitor.begin_phase(0, [0, 1], 0)
    run.measure(1.0)
    run.step(1, 1.0)
    assert run.reporter.states[-2:] == ["loss 0.5", "loss 0.5 at step 0"]
    run.measure(1.0, loss=0.25)
    assert run.reporter.states[-1] == "loss 0.25"
    run.monitor.begin_phase(1, [0, 100, 200], 0)
    run.step(1, 1.0)
    assert run.reporter.states[-1] == ""


def test_time_left_is_known_once_every_phase_is_timed(run):
    run.monitor.begin_batch(run.batches[0], 0, 3)
    run.embed()
    assert run.monitor.remaining() is None  # The phase query has not been timed.
    run.monitor.begin_phase(1, [0, 100, 200], 0)
    run.measure(2.0)
    run.step(1, 7.0)  # The first call includes compilation.
    run.step(99, 9.9)
    # The phase query has not been timed yet, and other batches still require it.
    assert run.monitor.remaining() is None
    run.measure(2.0)
    run.step(100, 10.0)
    run.measure(2.0)
    run.monitor.end_phase()
    first = 6.0 + 32.9
    run.monitor.begin_batch(run.batches[1], 1, 3)
    run.embed()
    assert run.monitor.remaining() == pytest.approx(first - 6.0 + first)
    run.monitor.begin_phase(1, [0, 100, 200], 0)
    # Before the phase has a measured speed, that of the previous batch is used.
    assert run.monitor.remaining() == pytest.approx(first - 6.0 + first)
    run.measure(1.0)
    run.step(1, 5.0)
    assert run.monitor.remaining() == pytest.approx(first - 6.0 - 6.0 + first)
    run.step(49, 4.9)
    # 150 steps, two measurements and one batch are left.
    assert run.monitor.remaining() == pytest.approx(15.0 + 2 * 1.0 + first)


def test_status_without_a_step_shows_no_fraction_and_no_time_left(run):
    run.monitor.begin_batch(run.batches[0], 0, 3)
    run.monitor.set_status("compiling")
    run.monitor.begin_phase(0, [0, 1], 0)
    run.step(1, 1.0)
    run.monitor.begin_phase(1, [0, 20], 0)
    run.step(5, 1.0)
    assert run.reporter.lines == [
        ("compiling", None, None),
        ("embed begins", None, None),
        ("embed step 1 of 1", pytest.approx(1 / 21 / 3), None),
        ("query begins", None, None),
        ("query step 5 of 20", pytest.approx(6 / 21 / 3), None),
    ]
    assert [entry["doing"] for entry in run.entries] == ["compiling", "embed begins", "query begins"]


def test_monitor_shows_the_progress_of_a_flow_along_its_path(monkeypatch, study):
    run = Run(monkeypatch, study("flow"))
    run.monitor.begin_batch(run.batches[0], 0, 3)
    run.monitor.begin_phase(1, [0, 1, 2, 11], 0)
    run.measure(0.1, p_norm=0.0)
    run.step(1, 20.0)
    run.measure(0.1, p_norm=123.4)
    run.step(1, 0.001)
    shown = ["query runs until ‖p‖ = 10000", *["query ‖p‖ = 0 of 10000"] * 2]
    shown += ["query ‖p‖ = 123 of 10000"] * 2
    assert [what for what, _, _ in run.reporter.lines] == shown
    # Its rows take between no time and minutes.
    assert run.monitor.remaining() is None
    assert run.monitor.block(9) == 1


def test_time_left_in_a_flow_is_estimated_from_earlier_flows(monkeypatch, study):
    run = Run(monkeypatch, study("flow"))

    def follow(seconds):
        run.monitor.begin_phase(1, [0, 1], 0)
        before = run.reporter.lines[-1]
        run.now += seconds
        return before

    for number, expected in ((0, None), (1, pytest.approx(2 * 30.0 + 6.0)), (2, pytest.approx(30.0))):
        run.monitor.begin_batch(run.batches[number], number, 3)
        run.embed()
        what, fraction, remaining = follow(29.0)
        assert (what, remaining) == ("query runs until ‖p‖ = 10000", expected)
        assert (fraction is None) == (remaining is None)
        assert run.entries[-1]["left"] == remaining
        run.step(1, 1.0)
        run.monitor.end_phase()
    follow(31.0)
    assert run.monitor.remaining() is None  # This is longer than any earlier flow.


def test_block_and_checkpoint_intervals_are_respected(monkeypatch, study):
    run = Run(monkeypatch, study(), block_s=2.0, checkpoint_s=10.0, checkpoint_share=0.1)
    run.monitor.begin_batch(run.batches[0], 0, 3)
    run.monitor.begin_phase(1, [0, 100], 0)
    assert run.monitor.block(100) == 1
    run.step(1, 0.5)
    assert run.monitor.block(99) == 4
    assert run.monitor.block(3) == 3
    run.step(1, 30.0)
    assert run.monitor.block(98) == 1
    assert run.monitor.is_time_to_save
    with run.monitor.saving():
        run.now += 3.0
    run.now += 29.0
    assert not run.monitor.is_time_to_save
    run.now += 2.0
    assert run.monitor.is_time_to_save


@pytest.mark.parametrize(
    ("took", "wait"), [(1.0, 60.0), (2.0, 66.7), (10.0, 80.0), (40.0, 50.0), (100.0, 100.0)]
)
def test_a_killed_process_loses_little_however_long_a_checkpoint_takes(monkeypatch, study, took, wait):
    """The share of checkpoints is bounded, unless more than 90 s could be lost, and it is at most a half."""
    run = Run(monkeypatch, study())
    run.monitor.begin_batch(run.batches[0], 0, 3)
    run.monitor.begin_phase(1, [0, 100], 0)
    with run.monitor.saving():
        run.now += took
    run.now += wait - 0.1
    assert not run.monitor.is_time_to_save
    run.now += 0.2
    assert run.monitor.is_time_to_save


@pytest.mark.skipif(monitor.peak_mib() is None, reason="no /proc on this system")
def test_peak_memory_grows_and_can_be_reset():
    monitor.forget_peak()
    before = monitor.peak_mib()
    held = np.ones(2**27, np.uint8)
    largest = monitor.peak_mib()
    # Parts of the process may have been paged out or freed in between.
    assert 100 <= largest - before <= 160
    del held
    assert monitor.peak_mib() >= largest - 10
    monitor.forget_peak()
    assert monitor.peak_mib() <= largest - 100


def test_batches_of_other_processes_are_left_out_of_the_time_left(run):
    run.monitor.begin_batch(run.batches[0], 0, 3)
    for phase, seconds in ((0, 2.0), (1, 3.0)):
        run.monitor.begin_phase(phase, [0, 1], 0)
        run.step(1, seconds)
        run.monitor.end_phase()
    assert run.monitor.remaining() == pytest.approx(2 * 5.0)
    run.monitor.drop(run.batches[2])
    assert run.monitor.remaining() == pytest.approx(5.0)


def test_waiting_ends_when_the_run_is_asked_to_stop(monkeypatch, study):
    run = Run(monkeypatch, study())
    with run.monitor.stopping():
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        run.monitor.wait(60.0)
    assert run.monitor.stop_requested


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_python_ends_as_the_signal_asks_for(monkeypatch, study, capsys, number, error):
    run = Run(monkeypatch, study())
    run.monitor.begin_batch(run.batches[0], 0, 3)
    run.monitor.begin_phase(0, [0, 1], 0)

    def stop():
        with monitor.ending_as_asked(), run.monitor.stopping():
            os.kill(os.getpid(), number)
            assert run.monitor.stop_requested
            raise run.monitor.interrupted()

    with pytest.raises(error) as caught:
        stop()
    words = capsys.readouterr().err if error is SystemExit else str(caught.value)
    assert words.startswith(
        "stopped; 0 of 3 batches finished, cell 0, seeds 0 to 1 saved at step 0 of embed;"
    )
    if error is SystemExit:
        assert caught.value.code == 143
