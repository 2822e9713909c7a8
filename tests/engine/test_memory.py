"""How many lanes fit: predictions against XLA's own count."""

import itertools
from pathlib import Path

import pytest

from jaxattn import Study
from jaxattn.engine import memory
from jaxattn.engine.groups import compile_groups
from jaxattn.errors import InputError

SWEEPS = Path(__file__).parents[2] / "sweeps"


def first(study):
    return compile_groups(study.cells)[0]


@pytest.fixture(scope="module")
def needed(study):
    """The prediction for the small study."""
    return memory.predict(first(study()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart", "margin_convergence"])
def test_memory_of_sixteen_lanes_is_predicted_within_a_tenth(name):
    """Against XLA's own count for a program of sixteen lanes, at the sizes of shipped sweeps."""
    group = compile_groups(Study.read(SWEEPS / f"{name}.toml").cells)[-1]
    assert abs(memory.predict(group).of(16) / memory.peak(group, 16) - 1) < 0.1


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("**/*.toml")), ids=lambda path: path.stem)
def test_what_sizes_alone_allow_is_never_less_than_what_is_held(path):
    for group in compile_groups(Study.read(path).cells):
        if not group.setting.data.shared:
            held, own = memory.sizes(group, 1)
            assert held + own <= memory.at_most(group.setting)


@pytest.mark.parametrize(
    ("kind", "batch_size"),
    [
        ("two_layer", None),
        ("one_layer", 20),
        *(
            pytest.param(*case, marks=pytest.mark.more)
            for case in itertools.product(("two_layer", "two_layer_weights", "mlp", "one_layer"), (None, 20))
            if case not in (("two_layer", None), ("one_layer", 20))
        ),
    ],
)
def test_models_hold_no_more_than_what_is_taken_to_fit(study, tables, kind, batch_size):
    phase = {"name": "all", "kind": "descent", "train": ["E", "p", "v"], "optimizer": "adam"}
    phase |= {"step_size": 0.1, "steps": 2} | ({} if batch_size is None else {"batch_size": batch_size})
    data = tables()["data"] | {"length": 40, "sequences": 300, "vocab_size": 60}
    group = first(study(model={"kind": kind, "dim": 64}, phases=[phase], data=data))
    _, own = memory.sizes(group, 1)
    assert memory.peak(group, 4) <= 4 * memory.CERTAIN * (own + memory.largest(group))


def test_arrays_of_every_sequence_count_in_what_is_taken_to_fit(study, tables):
    """The averages of an MLP, n d numbers, are many times its parameters if sequences are many."""
    phase = {"name": "all", "kind": "descent", "train": ["E", "p", "v"], "optimizer": "adam"}
    phase |= {"step_size": 0.1, "steps": 2}
    data = tables()["data"] | {"length": 2, "sequences": 8000, "vocab_size": 20}
    group = first(study(model={"kind": "mlp", "dim": 256}, phases=[phase], data=data))
    _, own = memory.sizes(group, 1)
    assert memory.CERTAIN * own < memory.peak(group, 4) / 4 <= memory.CERTAIN * (own + memory.largest(group))


def test_memory_holds_at_least_the_parameters_and_grows_with_them(study, needed):
    smaller = memory.predict(first(study(model={"kind": "one_layer", "dim": 4})))
    # E, p and v of a float32 model with V = 20, at least.
    assert smaller.per_lane >= 4 * (20 * 4 + 2 * 4)
    assert needed.per_lane - smaller.per_lane >= 4 * 20 * 12


def test_lanes_are_cut_to_what_fits_and_one_that_does_not_fit_is_an_error(study, needed):
    wanted = first(study())
    assert memory.width(wanted, 50, memory.default_budget()) == 50
    assert memory.width(wanted, 50, needed.of(7)) == 7
    with pytest.raises(InputError, match=r"cell 0: one seed needs \d+ MiB, but \d MiB may be used"):
        memory.width(wanted, 50, needed.of(1) // 4)


def test_lanes_that_all_fit_are_compiled_only_as_they_run(study, monkeypatch):
    wanted = first(study())
    enough = memory.peak(wanted, 48)
    monkeypatch.setattr(memory, "predict", None)
    assert memory.width(wanted, 48, enough) == 48


@pytest.mark.parametrize("sizes", [{"vocab_size": 5 * 10**7}, {"sequences": 10**8}])
def test_what_cannot_fit_is_said_before_anything_is_compiled(study, tables, monkeypatch, sizes):
    monkeypatch.setattr(memory, "predict", None)
    wanted = first(study(data=tables()["data"] | sizes))
    with pytest.raises(InputError, match=r"cell 0: one seed needs [\d,]+ MiB, but [\d,]+ MiB may be used"):
        memory.width(wanted, 5, 2**32)


def test_sizes_that_no_array_has_are_named(study, tables):
    sizes = {"vocab_size": 2**31 - 1, "length": 40, "sequences": 200}
    wanted = first(study(data=tables()["data"] | sizes))
    with pytest.raises(InputError, match="cell 0: its sizes are too large for programs"):
        memory.width(wanted, 5, 2**32)


def test_what_takes_long_is_told_before(study, needed):
    wanted, told = first(study()), []
    memory.width(wanted, 50, needed.of(7), told.append)
    assert told == [wanted]
    memory.width(wanted, 50, memory.default_budget(), told.append)
    assert told == [wanted]


def test_own_code_that_tells_no_sizes_is_traced(study):
    wanted = first(study("own"))
    assert memory.at_most(wanted.setting) == float("inf")
    # E, W, p and v in float64.
    assert memory.sizes(wanted, 1)[1] >= 8 * (10 * 4 + 16 + 4 + 4)
    assert memory.width(wanted, 50, memory.default_budget()) == 50


def test_address_space_is_judged_before_a_program_needs_it(monkeypatch):
    notes = []
    for gib, said in ((None, 0), (4, 0), (3, 1)):
        limit = memory.resource.RLIM_INFINITY if gib is None else gib * 2**30
        monkeypatch.setattr(memory.resource, "getrlimit", lambda kind, limit=limit: (limit, limit))
        notes.clear()
        memory.check_address_space(notes.append)
        assert len(notes) == said
    assert notes[0].startswith("address space is limited to 3.0 GiB (ulimit -v)")
    assert memory.default_budget() <= 3 * 2**30 // 4
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (2**30, 2**30))
    with pytest.raises(
        InputError, match=r"limited to 1.0 GiB \(ulimit -v\), too little .*; allow 4 GiB or more"
    ):
        memory.check_address_space(notes.append)


def test_limits_of_all_control_groups_count(tmp_path):
    job = tmp_path / "cgroup" / "batch" / "job"
    job.mkdir(parents=True)
    for folder, limit in (
        (job, "1000\n"),
        (job.parent, "max\n"),
        (job.parent.parent, "3000\n"),
        (tmp_path, "7\n"),
    ):
        (folder / "memory.max").write_text(limit)
    (tmp_path / "process").write_text("1:name=systemd:/elsewhere\n0::/batch/job\n")
    assert memory._of_control_groups(tmp_path / "cgroup", tmp_path / "process") == [1000, 3000]
    (tmp_path / "process").write_text("0::/\n")
    assert memory._of_control_groups(tmp_path / "cgroup", tmp_path / "process") == [3000]
    assert memory._of_control_groups(tmp_path / "cgroup", tmp_path / "nosuch") == [3000]
