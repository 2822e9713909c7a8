"""Extension of finished runs to more steps: bitwise equality with single runs, and kept results."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.errors import InputError

DATA = {"kind": "assumption1", "sequences": 12, "vocab_size": 10, "relevant": 4, "length": 5}
FIRST = {"kind": "one_step", "name": "embed", "step_size": 5.0}
LAST = {"kind": "descent", "name": "query", "train": ["p"], "optimizer": "adam", "step_size": 0.1}
PROBES = {"per_decade": 2, "bins": 0, "max_margin": True}


def study(steps, phase=None, **settings):
    phases = [FIRST, LAST | {"steps": steps} | (phase or {})]
    settings = {"seeds": 3, "chunk": 2, "probes": PROBES, "data": DATA} | settings
    return ja.Study(name="longer", model={"kind": "one_layer", "dim": 4}, phases=phases, **settings)


def content(folder):
    """Return records, tokens and failures of a finished folder, as bytes and values."""
    results = ja.load(folder)
    assert results.finished
    tables = [(Path(folder) / f"{name}.parquet").read_bytes() for name in ("records", "tokens")]
    return tables, results.manifest["failures"]


def assert_extends(folder, first, then):
    first.run(folder / "grown", quiet=True)
    grown = then.run(folder / "grown", quiet=True)
    single = then.run(folder / "single", quiet=True)
    assert content(folder / "grown") == content(folder / "single")
    for seed in (0, 2):
        both = (x.params(seed=seed) for x in (grown, single))
        jax.tree.map(np.testing.assert_array_equal, *both)
    return grown


@pytest.mark.parametrize(
    "phase",
    [{}, {"batch_size": 4, "optimizer": "sgd", "momentum": 0.9}, {"schedule": "inverse_sqrt", "warmup": 3}],
    ids=["adam", "minibatches and momentum", "a schedule without an end"],
)
@pytest.mark.more
def test_extended_run_is_bitwise_identical_to_a_single_run(phase, tmp_path):
    assert_extends(tmp_path, study(10, phase), study(100, phase))


@pytest.mark.slow
def test_several_cells_can_be_extended_twice_while_seeds_are_added(tmp_path):
    axes = {"phases.query.step_size": [0.1, 0.2], "data.vocab_size": [8, 10]}
    validation = {"data": DATA | {"validation_sequences": 6, "test_sequences": 6}, "axes": axes}
    study(10, **validation, seeds=2).run(tmp_path / "grown", quiet=True)
    study(100, **validation, seeds=2).run(tmp_path / "grown", quiet=True)
    grown = study(1000, **validation, seeds=3).run(tmp_path / "grown", quiet=True)
    single = study(1000, **validation, seeds=3).run(tmp_path / "single", quiet=True)
    keys = ["cell", "seed", "phase", "step", "metric"]
    one, other = (x.records.sort_values(keys, ignore_index=True) for x in (grown, single))
    assert one[keys].equals(other[keys])
    assert (one["seed"] == 2).any()
    # The third seed is in other batches, whose widths change last digits.
    np.testing.assert_allclose(one["value"], other["value"], rtol=2e-3, atol=1e-4)
    assert study(1000, **validation).run(tmp_path / "grown", quiet=True).finished


@pytest.mark.slow
def test_phases_measured_at_equal_intervals_can_be_extended_to_a_multiple(tmp_path):
    probes = {"every": {"query": 5}, "bins": 0}
    grown = assert_extends(tmp_path, study(10, probes=probes), study(25, probes=probes))
    assert sorted(grown.records.query("phase == 'query'")["step"].unique()) == [0, 5, 10, 15, 20, 25]


@pytest.mark.slow
def test_failed_seeds_of_an_extended_run_fail_at_the_same_step(tmp_path):
    phase = {"optimizer": "sgd", "step_size": 1e36, "train": ["E", "p", "v"]}
    probes = {"per_decade": 2, "bins": 0}
    grown = assert_extends(tmp_path, study(10, phase, probes=probes), study(100, phase, probes=probes))
    assert len(grown.failures)


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import tests.lab.engine.test_extension as own
from jaxattn.lab.engine import batch_run, monitor
from jaxattn.lab.engine.store import Store
save, count = Store.save, [0]

def killed(self, *arguments, **options):
    save(self, *arguments, **options)
    count[0] += 1
    if count[0] == int(sys.argv[3]):
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)

Store.save = killed
monitor.RunMonitor.is_time_to_save = property(lambda self: True)
own.study(100).run(sys.argv[2], quiet=True)
"""


@pytest.mark.parametrize("saves", [1, 3])
@pytest.mark.more
def test_killed_extension_shows_the_finished_run_and_resumes_bitwise_identically(saves, tmp_path):
    before = study(10).run(tmp_path / "grown", quiet=True)
    root = str(Path(__file__).resolve().parents[3])
    environment = os.environ | {"PYTHONPATH": root}
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, root, str(tmp_path / "grown"), str(saves)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    after = ja.load(tmp_path / "grown")
    keys = ["cell", "seed", "phase", "step", "metric"]
    # The second and third save are later than the end of the first batch, which has the first two seeds.
    seeds = range(3) if saves == 1 else [2]
    old = before.records[before.records["seed"].isin(seeds)]
    found = after.records.merge(old, on=keys, how="right", suffixes=("", "_before"))
    np.testing.assert_array_equal(found["value"], found["value_before"])
    for seed in seeds:
        jax.tree.map(np.testing.assert_array_equal, after.params(seed=seed), before.params(seed=seed))
    study(100).run(tmp_path / "grown", quiet=True)
    study(100).run(tmp_path / "single", quiet=True)
    assert content(tmp_path / "grown") == content(tmp_path / "single")
    # Nothing but the final states of the batches is left.
    assert all(len(list(x.iterdir())) == 1 for x in (tmp_path / "grown" / "checkpoints").iterdir())


class Ramp(ja.Phase, frozen=True, kw_only=True):
    """A phase whose steps depend on their number."""

    train: tuple[str, ...] = ("p",)
    steps: int = 10

    def step(self, task, state):
        params = state.params.replace(p=state.params.p * (1 - 1 / self.steps))
        return state.replace(params=params, step=state.step + 1)


class Shrink(Ramp, frozen=True, kw_only=True):
    """A phase whose steps do not depend on their number."""

    def step(self, task, state):
        params = state.params.replace(p=state.params.p * 0.9)
        return state.replace(params=params, step=state.step + 1)


def custom(kind, steps, blocks=None):
    return ja.Study(
        blocks=blocks,
        name="own",
        data=DATA,
        model={"kind": "one_layer", "dim": 4},
        phases=[kind(name="query", steps=steps)],
        probes={"per_decade": 2, "bins": 0},
        seeds=3,
    )


@pytest.mark.slow
def test_run_can_be_extended_to_the_steps_of_another_block(tmp_path):
    """The cells then form one compile group instead of two."""

    blocks = {"short": {}, "long": {"phases": {"query": {"steps": 100}}}}
    custom(Shrink, 10, blocks).run(tmp_path / "grown", quiet=True)
    custom(Shrink, 100, blocks).run(tmp_path / "grown", quiet=True)
    custom(Shrink, 100, blocks).run(tmp_path / "single", quiet=True)
    assert content(tmp_path / "grown") == content(tmp_path / "single")


@pytest.mark.slow
def test_custom_phase_can_be_extended_if_its_program_is_unchanged(tmp_path):
    assert_extends(tmp_path, custom(Shrink, 10), custom(Shrink, 100))
    custom(Ramp, 10).run(tmp_path / "ramp", quiet=True)
    words = r"phases\.query\.steps: 10 -> 100: query\.advance depends on the number of steps"
    with pytest.raises(InputError, match=words):
        custom(Ramp, 100).run(tmp_path / "ramp", quiet=True)


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (10, {"schedule": "cosine"}, r"phases\.query\.steps: 10 -> 100.*phases\.query\.schedule"),
        (10, {"patience": 2}, r"phases\.query\.steps: 10 -> 100.*phases\.query\.patience"),
        (40, {}, r"steps: 40 -> 100: .* would be measured at different steps .*; use 101 steps"),
        (1000, {}, r"a different config \(phases\.query\.steps: 1000 -> 100\)"),
    ],
)
@pytest.mark.slow
def test_runs_that_cannot_be_extended_raise_one_line_errors(first, then, words, tmp_path):
    data = {"data": DATA | {"validation_sequences": 6}}
    study(first, then, **data).run(tmp_path, quiet=True)
    held = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=words):
        study(100, then, **data).run(tmp_path, quiet=True)
    assert held == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_error_suggests_a_step_count_that_allows_an_extension(tmp_path):
    study(40).run(tmp_path / "grown", quiet=True)
    with pytest.raises(InputError) as refused:
        study(100).run(tmp_path / "grown", quiet=True)
    steps = int(str(refused.value).partition("use ")[2].partition(" ")[0].replace(",", ""))
    assert_extends(tmp_path, study(40), study(steps))


@pytest.mark.slow
def test_flows_cannot_be_extended(tmp_path):
    flow = {"kind": "gradient_flow", "name": "query", "train": ["p"], "points": 5}
    made = [
        ja.Study(
            name="flow", data=DATA, model={"kind": "one_layer", "dim": 4}, phases=[flow | {"until_time": t}]
        )
        for t in (1.0, 2.0)
    ]
    made[0].run(tmp_path, quiet=True)
    words = r"phases\.query\.until_time: 1\.0 -> 2\.0: the phase cannot be extended"
    with pytest.raises(InputError, match=words):
        made[1].run(tmp_path, quiet=True)


@pytest.mark.slow
def test_plan_counts_the_remaining_batches_of_an_extension(tmp_path):
    study(10).run(tmp_path, quiet=True)
    for steps, done in ((10, "3 of 3"), (100, "0 of 3")):
        (cells,) = study(steps).plan(tmp_path, quick=True).cells.to_dict("records")
        assert cells["done"] == done
