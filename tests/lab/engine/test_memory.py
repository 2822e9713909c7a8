"""Number of vmapped runs that fit in memory, compared with XLA's memory analysis."""

import itertools
import math

import jax
import pytest

import jaxattn as ja
from jaxattn.lab.engine import memory
from jaxattn.lab.engine.program_cache import programs
from jaxattn.lab.study.groups import compile_groups


def first(study):
    (group,) = compile_groups(study.cells)
    return group, programs(group.setting)


def test_number_of_runs_that_fit_is_found_by_linear_interpolation():
    asked = []

    def peak(runs):
        asked.append(runs)
        return 100 + 10 * runs

    assert memory.fit(peak, 50, 1000)[0] == 50
    assert asked == [50]
    for budget in (590, 450, 233, 111, 110):
        asked.clear()
        assert memory.fit(peak, 50, budget)[0] == (budget - 100) // 10
        assert asked == [50, 25, 12, 6, 3, 1][: len(asked)]
    assert memory.fit(peak, 50, 109) == (0, 110)
    # A program that does not compile gives no information about smaller numbers of runs.
    assert memory.fit(lambda n: math.inf if n > 20 else 10 * n, 50, 1000)[0] == 12


@pytest.mark.parametrize(
    ("kind", "batch_size"),
    [
        ("one_layer", 20),
        *(
            pytest.param(*case, marks=pytest.mark.more)
            for case in itertools.product(("two_layer", "two_layer_weights", "mlp", "one_layer"), (None, 20))
            if case != ("one_layer", 20)
        ),
    ],
)
@pytest.mark.more
def test_memory_bound_holds_for_all_models(study, tables, kind, batch_size):
    phase = {"name": "all", "kind": "descent", "train": ["E", "p", "v"], "optimizer": "adam"}
    phase |= {"step_size": 0.1, "steps": 2} | ({} if batch_size is None else {"batch_size": batch_size})
    data = tables()["data"] | {"length": 40, "sequences": 300, "vocab_size": 60}
    group = first(study(model={"kind": kind, "dim": 64}, phases=[phase], data=data))
    _, own = memory.program_sizes(*group, 1)
    assert memory.peak(*group, 4) <= 4 * memory.AMPLE * own


@pytest.mark.more
def test_memory_bound_holds_for_many_sequences(study, tables):
    """With many sequences the averages of an MLP, n d numbers, are many times its parameters."""
    phase = {"name": "all", "kind": "descent", "train": ["E", "p", "v"], "optimizer": "adam"}
    phase |= {"step_size": 0.1, "steps": 2}
    data = tables()["data"] | {"length": 2, "sequences": 8000, "vocab_size": 20}
    group = first(study(model={"kind": "mlp", "dim": 256}, phases=[phase], data=data))
    _, own = memory.program_sizes(*group, 1)
    assert 12 * own < memory.peak(*group, 4) / 4 <= memory.AMPLE * own


@pytest.fixture
def longer(study, tables):
    """Return a function that makes a study whose memory grows steadily with the number of runs.

    Small runs are vmapped in parts whose size depends on their number.
    """
    data = tables()["data"] | {"vocab_size": 2_000}
    return lambda dim=4: study(data=data, model={"kind": "one_layer", "dim": dim})


@pytest.mark.more
def test_peak_memory_grows_with_the_parameters(longer):
    grown = [memory.peak(*first(longer(dim)), 8) - memory.peak(*first(longer(dim)), 4) for dim in (4, 16)]
    runs = 4 // len(jax.local_devices())
    # The bounds are the sizes of E, p and v of a float32 model, less some memory that other arrays share.
    assert grown[0] >= runs * 4 * (2_000 * 4 + 2 * 4)
    assert grown[1] - grown[0] >= 0.8 * runs * 4 * 2_000 * 12


@pytest.mark.more
def test_number_of_simultaneous_runs_is_limited_by_memory(longer):
    wanted, noted = first(longer()), []
    assert memory.fitting_width(*wanted, 50, memory.default_budget(), noted.append) == 50
    assert noted == []
    budget = memory.peak(*wanted, 8)
    found = memory.fitting_width(*wanted, 50, budget, noted.append)
    assert noted == [wanted[0]]  # Compilation takes seconds.
    assert 6 <= found <= 9
    assert memory.peak(*wanted, found) <= 1.02 * budget
    with pytest.raises(ja.InputError, match=r"cell 0: one seed needs \d+ MiB, but the limit is \d MiB"):
        memory.fitting_width(*wanted, 50, memory.peak(*wanted, 1) // 4)


@pytest.mark.parametrize("sizes", [{"vocab_size": 5 * 10**7}, {"sequences": 10**8}])
def test_oversized_cells_raise_before_compilation(study, tables, monkeypatch, sizes):
    monkeypatch.setattr(memory, "peak", None)
    wanted = first(study(data=tables()["data"] | sizes))
    with pytest.raises(
        ja.InputError, match=r"cell 0: one seed needs [\d,]+ MiB, but the limit is [\d,]+ MiB"
    ):
        memory.fitting_width(*wanted, 5, 2**32)


def test_oversized_arrays_raise(study, tables):
    sizes = {"vocab_size": 2**31 - 1, "length": 40, "sequences": 200}
    wanted = first(study(data=tables()["data"] | sizes))
    with pytest.raises(ja.InputError, match="cell 0: compilation failed because the arrays are too large"):
        memory.fitting_width(*wanted, 5, 2**32)


def test_program_sizes_include_custom_code(study):
    wanted = first(study("own"))
    # The parameters are E, W, p and v in float64.
    assert memory.program_sizes(*wanted, 1)[1] >= 8 * (10 * 4 + 16 + 4 + 4)
    assert memory.fitting_width(*wanted, 50, memory.default_budget()) == 50


def test_low_address_space_limit_is_reported(monkeypatch):
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
        ja.InputError,
        match=r"limited to 1.0 GiB \(ulimit -v\), which is not enough .*; allow 4 GiB or more",
    ):
        memory.check_address_space(notes.append)


def test_memory_limits_of_all_control_groups_apply(tmp_path):
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
