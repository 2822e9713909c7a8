"""Longer last phases continue the shorter ones of finished runs, with the same bits as a single run."""

import jax
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.engine import continuation
from jaxattn.lab.storage import checkpoints
from jaxattn.lab.storage.tables import renumbered
from jaxattn.lab.storage.workplace import Workplace

DATA = {"kind": "assumption1", "sequences": 12, "vocab_size": 10, "relevant": 4, "length": 5}
FIRST = {"kind": "one_step", "name": "embed", "step_size": 5.0}
LAST = {"kind": "descent", "name": "query", "train": ["p"], "optimizer": "adam", "step_size": 0.1}
PROBES = {"per_decade": 2, "bins": 0}
KEYS = ["cell", "seed", "phase", "step", "metric"]


def study(steps, phase=None, **settings):
    phases = [FIRST, LAST | {"steps": steps} | (phase or {})]
    settings = {"seeds": 2, "probes": PROBES, "data": DATA} | settings
    return ja.Study(name="longer", model={"kind": "one_layer", "dim": 4}, phases=phases, **settings)


@pytest.fixture
def assert_continues(tmp_path, go, counted, assert_same, read):
    """Return a function that asserts that a study continues another one, and equals a single run."""

    def check(first, then, taken):
        go(tmp_path / "grown", first)
        before = read(tmp_path / "grown")
        counted.clear()
        assert go(tmp_path / "grown", then)[1] == []
        assert [steps for _, steps in counted] == taken
        go(tmp_path / "single", then)
        assert_same(tmp_path / "grown", tmp_path / "single")
        # The shorter runs are still there.
        assert go(tmp_path / "grown", first)[0].already_finished
        for table, was in zip(read(tmp_path / "grown"), before, strict=True):
            pd.testing.assert_frame_equal(table, was, check_exact=True)
        counted.clear()
        return tmp_path / "single"

    return check


LOG = {"kind": "log_descent", "name": "query", "step_size": 0.2}
KINDS = {
    "adam": LAST,
    "minibatches and momentum": LAST | {"batch_size": 4, "optimizer": "sgd", "momentum": 0.9},
    "a schedule without an end": LAST | {"schedule": "inverse_sqrt", "warmup": 3},
    "all parameters": LAST | {"train": ["E", "p", "v"]},
    "normalized": LOG | {"method": "normalized"},
    "accelerated": LOG | {"method": "dual_acceleration"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.more
def test_longer_phase_continues_with_the_same_bits_as_a_single_run(kind, assert_continues):
    first, then = (
        ja.Study(
            name="longer",
            model={"kind": "one_layer", "dim": 4},
            phases=[FIRST, KINDS[kind] | {"steps": steps}],
            probes=PROBES | {"max_margin": kind in ("adam", "normalized")},
            data=DATA,
            seeds=2,
        )
        for steps in (10, 100)
    )
    assert_continues(first, then, [90])


@pytest.mark.more
def test_batches_continue_one_by_one(assert_continues):
    assert_continues(study(10, seeds=3, chunk=2), study(31, seeds=3, chunk=2), [21, 21])


@pytest.mark.more
def test_phases_measured_at_equal_intervals_continue(assert_continues, read):
    probes = {"every": {"query": 5}, "bins": 0}
    single = assert_continues(study(10, probes=probes), study(25, probes=probes), [15])
    steps = read(single)[0].query("phase == 'query'")["step"].unique()
    assert sorted(steps) == [0, 5, 10, 15, 20, 25]


@pytest.mark.more
def test_failed_seeds_of_a_continued_run_fail_at_the_same_step(assert_continues, go):
    phase = {"optimizer": "sgd", "step_size": 1e36, "train": ["E", "p", "v"]}
    probes = {"per_decade": 2, "bins": 0}
    single = assert_continues(study(10, phase, probes=probes), study(31, phase, probes=probes), [21])
    assert len(ja.load(single).failures)


@pytest.mark.more
def test_several_cells_continue_twice_while_seeds_are_added(tmp_path, go, counted, read):
    more = {"data": DATA | {"test_sequences": 6}, "axes": {"phases.query.step_size": [0.1, 0.2]}}
    go(tmp_path / "grown", study(10, **more))
    go(tmp_path / "grown", study(100, **more))
    counted.clear()
    longest = study(316, **more, seeds=3)
    go(tmp_path / "grown", longest)
    assert sorted((len(runs), steps) for runs, steps in counted) == [(2, 317), (4, 216)]
    go(tmp_path / "single", longest)
    one, other = (read(tmp_path / name, ordered=True)[0] for name in ("grown", "single"))
    pd.testing.assert_frame_equal(one[KEYS], other[KEYS])
    # The third seed is in other batches, whose widths change last digits.
    np.testing.assert_allclose(one["value"], other["value"], rtol=2e-3, atol=1e-4)
    counted.clear()
    for steps in (10, 100):
        assert go(tmp_path / "grown", study(steps, **more))[0].already_finished
    assert counted == []


@pytest.mark.more
def test_some_runs_of_a_batch_continue_with_their_own_values(tmp_path, go, counted, read):
    """The new batch has the last of three seeds, and the first in another place."""
    go(tmp_path / "grown", study(10, seeds=3))
    counted.clear()
    go(tmp_path / "grown", study(31, seeds=[2, 7, 0]))
    assert [(runs, steps) for runs, steps in counted] == [([(0, 0), (0, 2)], 21), ([(0, 7)], 32)]
    go(tmp_path / "single", study(31, seeds=[2, 7, 0]))
    one, other = (read(tmp_path / name, ordered=True) for name in ("grown", "single"))
    for mine, theirs, column in zip(one, other, ("value", "Ep"), strict=True):
        assert mine["seed"].tolist() == theirs["seed"].tolist()
        np.testing.assert_allclose(mine[column], theirs[column], rtol=2e-3, atol=1e-4)
    for seed in (0, 2, 7):
        params = [ja.load(tmp_path / name).params(seed=seed) for name in ("grown", "single")]
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4), *params)


@pytest.fixture
def small(tables):
    """Return a function that makes the small study, whose programs for one seed other tests compile too."""

    def make(steps, seeds=1):
        first, last = tables()["phases"]
        phases, probes = [first, last | {"steps": steps}], tables()["probes"] | {"per_decade": 2}
        return ja.Study.from_tables(tables(phases=phases, probes=probes, seeds=seeds, chunk=1))

    return make


def test_the_longest_of_the_shorter_runs_is_continued(tmp_path, go, counted, small):
    for steps in (10, 3):
        go(tmp_path, small(steps))
    assert [steps for _, steps in counted] == [11, 4]
    counted.clear()
    go(tmp_path, small(31))
    assert [steps for _, steps in counted] == [21]


def test_shorter_phase_is_computed_from_the_start(tmp_path, go, counted, assert_same, small):
    go(tmp_path / "both", small(31))
    counted.clear()
    go(tmp_path / "both", small(10))
    assert [steps for _, steps in counted] == [11]
    go(tmp_path / "alone", small(10))
    assert_same(tmp_path / "both", tmp_path / "alone")


@pytest.mark.parametrize("after", [2, 4])
@pytest.mark.more
def test_stopped_continuation_resumes_with_the_same_bits(
    after, tmp_path, go, stop, every_step, counted, assert_same
):
    go(tmp_path / "grown", study(10))
    counted.clear()
    stop(tmp_path / "grown", study(31), after, intervals=every_step)
    go(tmp_path / "grown", study(31), intervals=every_step)
    first, again = (steps for _, steps in counted)
    assert 0 < first < first + again == 21
    go(tmp_path / "single", study(31))
    assert_same(tmp_path / "grown", tmp_path / "single")


@pytest.mark.parametrize("saves", [1, 3])
@pytest.mark.more
def test_killed_continuation_keeps_the_shorter_runs(
    saves, tmp_path, go, every_step, counted, assert_same, read, monkeypatch
):
    go(tmp_path / "grown", study(10))
    before = read(tmp_path / "grown")[0]
    save, count = Workplace.save, []

    def killed(self, *arguments, **options):
        count.append(1)
        if len(count) == saves:
            raise KeyboardInterrupt
        save(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Workplace, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "grown", study(31), intervals=every_step)
    assert go(tmp_path / "grown", study(10))[0].already_finished
    pd.testing.assert_frame_equal(read(tmp_path / "grown")[0], before, check_exact=True)
    counted.clear()
    go(tmp_path / "grown", study(31))
    assert [steps for _, steps in counted] == [21 - (saves - 1)]
    go(tmp_path / "single", study(31))
    assert_same(tmp_path / "grown", tmp_path / "single")


@pytest.mark.parametrize("name", ["records.parquet", "checkpoint"])
@pytest.mark.more
def test_damaged_runs_are_not_continued(name, tmp_path, go, counted, assert_same, listed, flip):
    go(tmp_path / "grown", study(10))
    (batch,) = listed(tmp_path / "grown").finished
    path = tmp_path / "grown" / "runs" / batch / name
    flip(next(x for x in path.rglob("*") if x.is_file()) if path.is_dir() else path)
    counted.clear()
    _, lines = go(tmp_path / "grown", study(31))
    assert [batch in line and "damaged" in line for line in lines] == [True]
    assert [steps for _, steps in counted] == [32]
    go(tmp_path / "single", study(31))
    assert_same(tmp_path / "grown", tmp_path / "single")


@pytest.mark.more
def test_damaged_arrays_that_are_noticed_late_are_not_continued(
    tmp_path, go, counted, assert_same, monkeypatch
):
    """Large arrays are read only when a batch continues them."""
    go(tmp_path / "grown", study(10))
    restore, calls = checkpoints.restore, []

    def damaged(*arguments):
        calls.append(1)
        raise checkpoints.Damaged("checkpoint: damaged (its arrays differ)")

    counted.clear()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "restore", damaged)
        _, lines = go(tmp_path / "grown", study(31))
    assert lines == ["checkpoint: damaged (its arrays differ); starting from an earlier state"]
    assert [steps for _, steps in counted] == [32]
    go(tmp_path / "single", study(31))
    assert_same(tmp_path / "grown", tmp_path / "single")
    assert restore is checkpoints.restore


@pytest.mark.more
def test_batch_that_continues_is_split_if_it_does_not_fit_in_memory(tmp_path, go, counted, monkeypatch, read):
    from jaxattn.lab.engine import attempt

    go(tmp_path / "grown", study(10))
    original = attempt.run_batch

    def full(batch, *arguments, **options):
        if batch.width > 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return original(batch, *arguments, **options)

    counted.clear()
    monkeypatch.setattr(attempt, "run_batch", full)
    assert not go(tmp_path / "grown", study(31))[0].errors
    assert [(runs, steps) for runs, steps in counted] == [([(0, 0)], 21), ([(0, 1)], 21)]
    go(tmp_path / "single", study(31, seeds=2, chunk=1))
    one, other = (read(tmp_path / name, ordered=True)[0] for name in ("grown", "single"))
    pd.testing.assert_frame_equal(one[KEYS], other[KEYS])
    np.testing.assert_allclose(one["value"], other["value"], rtol=2e-3, atol=1e-4)


@pytest.mark.more
def test_shards_continue_each_run_once(tmp_path, go, counted, assert_same):
    first, then = study(10, chunk=1), study(31, chunk=1)
    go(tmp_path / "grown", first)
    counted.clear()
    assert go(tmp_path / "grown", then, shard=(1, 2))[0].batches == 1
    assert go(tmp_path / "grown", then, shard=(1, 2))[0].already_finished
    assert go(tmp_path / "grown", then, shard=(2, 2))[0].batches == 1
    assert [(runs, steps) for runs, steps in counted] == [([(0, 0)], 21), ([(0, 1)], 21)]
    go(tmp_path / "single", then)
    assert_same(tmp_path / "grown", tmp_path / "single")


@pytest.mark.more
def test_run_continues_at_another_number_of_devices(tmp_path, go, counted, read, monkeypatch):
    from jaxattn.lab.engine import run_study

    with monkeypatch.context() as patch:
        patch.setattr(run_study.devices, "pad_to_devices", lambda runs, shared: [*runs, *runs])
        go(tmp_path / "grown", study(10))
    counted.clear()
    go(tmp_path / "grown", study(31))
    assert [steps for _, steps in counted] == [21]
    go(tmp_path / "single", study(31))
    one, other = (read(tmp_path / name)[0] for name in ("grown", "single"))
    pd.testing.assert_frame_equal(one[KEYS], other[KEYS])
    np.testing.assert_allclose(one["value"], other["value"], rtol=2e-3, atol=1e-4)


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


def custom(kind, steps, blocks=None, **changes):
    return ja.Study(
        blocks=blocks,
        name="own",
        data=DATA,
        model={"kind": "one_layer", "dim": 4},
        phases=[kind(name="query", steps=steps)],
        probes={"per_decade": 2, "bins": 0},
        **{"seeds": 2} | changes,
    )


@pytest.mark.more
def test_custom_phase_continues_if_its_program_does_not_depend_on_its_steps(assert_continues):
    assert_continues(custom(Shrink, 10), custom(Shrink, 31), [21])


@pytest.mark.more
def test_custom_phase_that_depends_on_its_steps_starts_again(assert_continues):
    assert_continues(custom(Ramp, 10), custom(Ramp, 31), [31])


@pytest.mark.more
def test_run_continues_that_was_in_another_compile_group(tmp_path, go, counted, assert_same):
    blocks = {"short": {}, "long": {"phases": {"query": {"steps": 100}}}}
    go(tmp_path / "grown", custom(Shrink, 10, blocks))
    counted.clear()
    # Both cells are now the same runs, which are there.
    assert go(tmp_path / "grown", custom(Shrink, 100, blocks))[0].already_finished
    blocks["long"]["phases"]["query"]["steps"] = 316
    go(tmp_path / "grown", custom(Shrink, 100, blocks))
    assert [steps for _, steps in counted] == [216]
    go(tmp_path / "single", custom(Shrink, 100, blocks))
    assert_same(tmp_path / "grown", tmp_path / "single")


VALIDATION = {"data": DATA | {"validation_sequences": 6}}


@pytest.mark.parametrize(
    ("first", "phase"),
    [(10, {"schedule": "cosine"}), (10, {"patience": 2}), (40, {})],
    ids=["a schedule over all steps", "the best step so far", "other measured steps"],
)
@pytest.mark.more
def test_runs_that_cannot_be_continued_are_computed_from_the_start(first, phase, assert_continues):
    first, then = (study(steps, phase, **VALIDATION, seeds=1) for steps in (first, 100))
    assert_continues(first, then, [101])


@pytest.mark.more
def test_longer_flows_are_computed_from_the_start(assert_continues, go, tmp_path, counted, assert_same):
    flow = {"kind": "gradient_flow", "name": "query", "train": ["p"], "points": 5}
    first, then = (
        ja.Study(
            name="flow", data=DATA, model={"kind": "one_layer", "dim": 4}, phases=[flow | {"until_time": t}]
        )
        for t in (1.0, 2.0)
    )
    go(tmp_path / "both", first)
    counted.clear()
    go(tmp_path / "both", then)
    taken = [steps for _, steps in counted]
    counted.clear()
    go(tmp_path / "alone", then)
    assert [steps for _, steps in counted] == taken
    assert_same(tmp_path / "both", tmp_path / "alone")


def test_plan_counts_the_batches_that_continue(tmp_path, go, small):
    go(tmp_path, small(10, seeds=2))
    for steps, done, batches in ((10, "2 of 2", 0), (100, "0 of 2", 2)):
        planned = small(steps, seeds=2).plan(tmp_path, quick=True)
        assert planned.cells["done"].tolist() == [done]
        assert planned.groups["batches"].tolist() == [batches]


def test_rows_of_some_runs_get_new_cell_indices():
    table = pd.DataFrame({"cell": [0, 0, 1, 1, 2], "seed": [0, 1, 0, 1, 0], "value": range(5)})
    found = renumbered(table, {(1, 0): (7, 0), (0, 1): (3, 1)})
    assert found.to_dict("list") == {"cell": [3, 7], "seed": [1, 0], "value": [1, 2]}
    assert found["cell"].dtype == table["cell"].dtype
    empty = pd.DataFrame()
    assert renumbered(empty, {(1, 0): (7, 0)}) is empty


def test_number_of_steps_of_the_last_phase_is_replaced():
    setting = study(10).base
    longer = continuation.with_steps(setting, 31)
    assert [phase.steps for phase in longer.phases] == [1, 31]
    assert longer.phases[0] is setting.phases[0]
    assert longer == study(31).base
