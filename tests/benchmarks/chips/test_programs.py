"""Programs of shipped sweeps, compiled for chips that are not installed, and their ceilings."""

import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from chips import plan as command
from chips.process import check
from chips.targets import read_target

import jaxattn as ja

ROOT = Path(__file__).parents[3]
CASES = tomllib.loads((Path(__file__).parent / "ceilings.toml").read_text(encoding="utf-8"))["case"]

pytestmark = pytest.mark.chips


def plan(name, sweep, overrides=(), **options):
    """Compile the programs of a sweep."""
    try:
        check(read_target(name))
    except ja.InputError as error:
        pytest.skip(str(error))
    return command.plan(ja.Study.read(ROOT / sweep, overrides), name, **options)


def named(row):
    return ".".join(filter(None, (row.phase, row.program)))


def label(case):
    overrides = (text for text in case["overrides"] if not text.startswith("data="))
    return " ".join((case["target"], Path(case["sweep"]).stem, *overrides))


# One test covers a whole case, so that parallel test processes compile it once.
@pytest.mark.parametrize("case", CASES, ids=label)
def test_programs_of_shipped_sweeps_stay_within_their_cost_limits(case):
    options = {key: case[key] for key in ("overrides", "only") if key in case}
    programs = plan(case["target"], case["sweep"], **options).programs
    here = [row for row in programs if row.where != "host"]
    assert {named(row) for row in here} == set(case["ceilings"])
    for row in here:
        assert not row.error, row
        ceilings = case["ceilings"][named(row)]
        measured = {key: getattr(row, key) for key in ceilings}
        assert all(measured[key] <= most for key, most in ceilings.items()), (named(row), measured, ceilings)
    # A collective would be communication between seeds.
    for key in ("compare_and_swaps", "collectives"):
        assert {named(row): getattr(row, key) for row in here if getattr(row, key)} == {}
    # Everything uses float64, as the ceilings state.
    assert sum(row.scatter_adds for row in here) == case.get("scatter_adds", 0)
    if case["target"].startswith("v"):
        assert {named(row): row.float64 for row in programs if row.float64} == {}


def test_float64_study_runs_on_the_host_of_a_tpu():
    found = plan("v5e:2x2", "tests/sweeps/flow.toml")
    assert {row.where for row in found.programs} == {"host"}


def test_only_the_exact_flow_in_a_float32_study_runs_on_the_host():
    found = plan("v5e:2x2", "tests/sweeps/flow.toml", overrides=["dtype='float32'"])
    where = {named(row): row.where for row in found.programs}
    host = {name for name, place in where.items() if place == "host"}
    assert host == {f"query.{name}" for name in ("begin", "advance", "state_metrics", "observe")}
    assert set(where.values()) == {"host", "v5e:2x2"}


def test_programs_shared_by_groups_are_compiled_once():
    first, *others = plan("h200", "sweeps/one_step_law.toml", only=["draw"]).programs
    assert first.compile_s > 0
    assert others
    for row in others:
        assert (row.compile_s, row.bytes, row.held) == (0.0, first.bytes, first.held)


def test_chip_memory_is_linear_in_the_number_of_runs():
    (few,), (many,) = (
        plan("h200", "tests/sweeps/small.toml", overrides=[f"seeds={n}"]).groups for n in (1024, 4096)
    )
    predicted = few.held + (4096 - 1024) * few.per_lane
    # At 512 runs the memory of `draw` is not yet linear (10 kB per run; 15.5 kB from 1,024 runs on).
    assert abs(predicted / many.held - 1) < 0.1
    assert (few.together, many.together, many.batches) == (1024, 4096, 1)


def test_number_of_simultaneous_runs_is_limited_by_memory():
    options = {"overrides": ["seeds=512"], "max_memory": 2**21}
    (group,) = plan("h200", "tests/sweeps/small.toml", **options).groups
    assert 1 < group.together == group.fitting < 512
    assert group.held <= 2**21
    assert group.batches == math.ceil(512 / group.together)


def test_a_smaller_size_is_suggested_if_one_seed_exceeds_memory():
    large = ["data.vocab_size=200000", "model.dim=65536", "phases.query.optimizer='adam'"]
    with pytest.raises(
        ja.InputError, match=r"cell 0: one seed needs [\d,.]+ GiB or more, and a100"
    ) as raised:
        plan("a100", "tests/sweeps/small.toml", overrides=large)
    smaller = str(raised.value).partition("; ")[2].removesuffix(" would fit").split(" or ")
    assert [text.partition("=")[0] for text in smaller] == ["--set model.dim", "--set data.vocab_size"]
    for text in smaller:
        fits = plan("a100", "tests/sweeps/small.toml", overrides=[*large, text.removeprefix("--set ")])
        assert fits.groups[0].fitting >= 1


def test_command_prints_the_study_plan(tmp_path):
    answer = plan("h200", "tests/sweeps/small.toml")
    assert "12 programs compile for h200" in str(answer)
    words = [sys.executable, command.__file__, str(ROOT / "tests/sweeps/small.toml"), "--quiet"]
    done = subprocess.run([*words, "--target", "h200"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert answer.sentence in done.stdout
    (_, programs), (_, groups) = answer.tables
    for table, name in ((programs, "bytes"), (programs, "launches"), (groups, "memory per run")):
        assert set(table[name]) <= set(re.split(r"\s{2,}", done.stdout.replace("\n", "  ")))


def test_studies_with_importable_custom_functions_can_be_planned():
    answer = plan("h200", "tests/sweeps/own.toml", only=["draw"])
    assert [(row.where, row.error) for row in answer.programs] == [("h200", "")]
