"""The plan of a study for a chip."""

import dataclasses
import json
import math

import pytest
from chips import on_chip, process
from chips.plan import plan
from chips.targets import Compiled, read_target

import jaxattn as ja

GROUP = {
    "group": 0,
    "runs": 96,
    "together": 64,
    "fitting": 70,
    "batches": 2,
    "per_lane": 1.5e6,
    "held": 2_000_000_000,
    "compile_s": 12.0,
    "seconds_at_least": 0.25,
}
ROW = {"group": 0, "phase": "query"}
COUNTED = {
    "per": "step",
    "bytes": 85_200_000,
    "flops": 3_000_000,
    "launches": 15,
    "seconds_at_least": 30e-6,
    "held": 2_000_000_000,
    "temporaries": 24_300_000,
    "compile_s": 1.25,
    "scatter_adds": 0,
    "compare_and_swaps": 2,
    "collectives": 0,
    "float64": 0,
    "conditionals": 1,
}
PROGRAMS = [
    ROW | {"program": "advance", "where": "v5e"} | COUNTED,
    ROW | {"program": "begin", "where": "host"},
    ROW | {"program": "measure", "where": "does not compile", "error": "no such thing", "compile_s": 3.0},
]


@pytest.fixture
def answered(monkeypatch):
    """Replace the process of a chip by a stored answer; record the request."""
    asked = []

    def call(target, function, arguments, progress):
        asked.append((target.name, function, json.loads(json.dumps(arguments))))
        progress("half", 0.5)
        return {"groups": [GROUP], "programs": PROGRAMS}

    monkeypatch.setattr(process, "call", call)
    return asked


def test_study_is_planned_for_a_chip(answered, study):
    told = []
    wanted = study(seeds=64)
    found = plan(wanted, "v5e", only=["draw"], progress=lambda *said: told.append(said))
    ((name, function, asked),) = answered
    assert (name, function) == ("v5e", "chips.on_chip:plan_on")
    assert asked["tables"] == json.loads(json.dumps(wanted.tree))
    assert (asked["only"], told) == (["draw"], [("half", 0.5)])
    (group,), (advance, begin, measure) = found.groups, found.programs
    assert dataclasses.asdict(group) == GROUP
    assert {name: getattr(advance, name) for name in COUNTED} == COUNTED
    assert [program.on_host for program in found.programs] == [False, True, False]
    assert (begin.bytes, measure.error) == (None, "no such thing")
    with pytest.raises(dataclasses.FrozenInstanceError):
        group.lanes = 1


def test_plan_prints_tables(answered, study):
    text = str(plan(study(), "v5e"))
    for words in ("Programs on v5e", "85.2 MB", "30 µs", "2 compare-and-swap loops, 1 conditionals", "1.2 s"):
        assert words in text
    for words in ("Compile groups on v5e", "1.5 MB", "2 GB", "70", "12 s", "250 ms"):
        assert words in text
    host = "1 need float64 and run on the host's CPU"
    assert text.endswith(f"1 programs compile for v5e; {host}; 1 do not compile: no such thing")


def test_invalid_targets_and_unimportable_code_raise_one_line_errors(answered, study, monkeypatch):
    with pytest.raises(ja.InputError, match="target: 'h300' is unknown; use a100"):
        plan(study(), "h300")
    monkeypatch.setattr(type(study()), "custom_kinds", ["__main__:Mine"])
    with pytest.raises(
        ja.InputError, match="__main__:Mine: cannot be imported by another process; move it to a file"
    ):
        plan(study(), "h200")
    assert answered == []


@pytest.mark.parametrize(("needed", "told"), [(40 * 2**30, "40.0"), (math.inf, "10.0")])
def test_study_that_exceeds_chip_memory_raises_an_error(study, monkeypatch, needed, told):
    """A compiler may reject a program that is too large, or compile it and report its memory."""

    def compile_first(self, lanes, only=()):
        first = next(self.programs.phase_programs(self.group, lanes))
        refused = math.isinf(needed)
        return [(first, Compiled("RESOURCE_EXHAUSTED", 0.0) if refused else Compiled("", 0.0, held=needed))]

    monkeypatch.setattr(on_chip._Compiler, "compile", compile_first)
    place = {"tables": study().tree, "folder": ".", "max_memory": 10 * 2**30}
    with pytest.raises(
        ja.InputError, match=rf"one seed needs {told} GiB or more, and v5e has 10.0 GiB for it"
    ):
        on_chip.plan_on(read_target("v5e"), lambda text, share: None, **place)


def test_missing_compilers_are_reported_with_requirements(study, monkeypatch):
    monkeypatch.setattr("chips.process._version", lambda name: None)
    with pytest.raises(
        ja.InputError,
        match=r"target h200: jax-cuda12-plugin.*pip install -r benchmarks/chips/requirements.txt",
    ) as e:
        plan(study(), "h200")
    assert "\n" not in str(e.value)
