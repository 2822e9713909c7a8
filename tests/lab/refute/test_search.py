"""Searches end to end, on a claim of pure arithmetic."""

import json
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.errors import UserCodeError
from jaxattn.lab.refute import read_claim, refute, search_state
from jaxattn.lab.refute.batch import Batch, compute
from jaxattn.lab.refute.proof import _as_json
from jaxattn.lab.refute.search import smallest


def state(folder):
    """Return the saved state without its times."""
    found = json.loads((folder / "search.json").read_text())
    return {key: value for key, value in found.items() if "seconds" not in key}


def test_counterexample_is_found_shrunk_and_written(write_claim, tmp_path):
    found = refute(write_claim(), budget=60, out=tmp_path / "out", command="jaxattn refute norm.py")
    assert found.verdict == "falsified"
    assert found.counterexample.instance["x"].tolist() == [3]
    record = json.loads((tmp_path / "out/counterexample.json").read_text())
    assert (record["left"], record["right"], record["instance"]) == ("9", "8", {"x": [3]})
    assert record["found_by"]["command"] == "jaxattn refute norm.py"
    assert record["check"]["output"] == "9 1"
    check = tmp_path / "out/check.py"
    assert subprocess.run([sys.executable, "-I", check], check=False).returncode == 0
    check.write_text(check.read_text().replace("[3]", "[2]"))
    assert subprocess.run([sys.executable, "-I", check], check=False).returncode == 1
    page = (tmp_path / "out/counterexample.md").read_text()
    assert "# Falsified" in page
    assert "| left side | 9 |" in page
    assert "| 0 | 3 |" in page


def test_a_true_statement_is_never_called_verified(write_claim, tmp_path):
    """All x of Z^4 with entries up to 4 have ‖x‖² ≤ 64. The size n = 1 is enumerated, and n = 4 is not."""
    path = write_claim(bound=64, sizes="({'n': 1}, {'n': 4})")
    found = refute(path, budget=60, out=tmp_path / "out", batches=5)
    assert found.verdict == "no counterexample"
    assert found.counterexample is None
    assert found.sentence.startswith("no counterexample in ")
    assert "to horizon 0 steps" in found.sentence
    verdict = json.loads((tmp_path / "out/verdict.json").read_text())
    assert verdict["by_size"][0] == {"n": 1, "tried": 9, "inside": 8, "all": True}
    assert verdict["by_size"][1]["tried"] <= 4 * 64
    # The closest instance is at the largest norm that was tried.
    assert verdict["best_score"] == np.square(verdict["closest"]["x"]).sum() - 64


def test_an_enumerated_space_ends_the_search(write_claim, tmp_path):
    found = refute(write_claim(bound=16, sizes="({'n': 1},)"), budget=60, out=tmp_path / "out")
    assert (found.tried, found.inside) == (9, 8)


def test_an_unconfirmed_violation_does_not_end_the_search(write_claim, tmp_path):
    """The evidence contradicts the statement for no instance; files of an earlier search are deleted."""
    path = write_claim()
    refute(path, budget=60, out=tmp_path / "out")
    text = path.read_text().replace("import Claim,", "import Claim, Evidence,")
    evidence = 'evidence=lambda one: Evidence(False, "norm", "none", "x", 0.0, 1.0, 2.0, "range"), '
    path.write_text(text.replace("check='check_norm.py'", evidence + "check='check_norm.py'"))
    found = refute(path, budget=60, out=tmp_path / "out", batches=2)
    assert found.verdict == "no counterexample"
    assert "the flow confirmed none of 24 candidates" in found.sentence
    assert state(tmp_path / "out")["number"] == 2
    assert not (tmp_path / "out/counterexample.json").exists()
    assert not (tmp_path / "out/check.py").exists()
    # The search resumes after its second batch.
    refute(path, budget=60, out=tmp_path / "out", batches=3)
    assert state(tmp_path / "out")["unconfirmed"] == 36


def test_boundary_cases_do_not_end_the_search(write_claim, tmp_path):
    path = write_claim(boundary="'a tie'")
    found = refute(path, budget=60, out=tmp_path / "out", batches=3)
    assert found.verdict == "falsified (boundary case)"
    assert "no substantive counterexample" in found.sentence
    assert state(tmp_path / "out")["number"] == 3


def test_an_interrupted_search_resumes_to_the_same_state(write_claim, tmp_path):
    path = write_claim(bound=64)
    for batches in (1, 3, 6):
        refute(path, budget=60, out=tmp_path / "parts", batches=batches)
    refute(path, budget=60, out=tmp_path / "whole", batches=6)
    assert state(tmp_path / "parts") == state(tmp_path / "whole")
    refute(path, budget=60, seed=1, out=tmp_path / "other", batches=6)
    assert state(tmp_path / "other")["pools"] != state(tmp_path / "whole")["pools"]


def test_differential_evolution_reaches_the_largest_score(write_claim, tmp_path):
    """In Z^12, the largest norm with entries up to 4 is 192. One batch evaluates 21 populations of 64."""
    path = write_claim(bound=192, sizes="({'n': 12},)")
    found = refute(path, budget=60, out=tmp_path / "evolved", batches=24, evolution=True)
    assert found.best == 0
    assert 24 * 21 * 32 < found.tried <= 24 * 21 * 64


def test_a_search_of_another_claim_or_by_another_method_is_not_resumed(write_claim, tmp_path):
    path = write_claim(bound=64)
    path.write_text(f"{path.read_text()}\nother = claim\n")
    for name, number in ((path, 2), (f"{path}:other", 1)):
        refute(name, budget=60, out=tmp_path / "claims", batches=number)
        assert state(tmp_path / "claims")["number"] == number
    for folder in ("one", "two"):
        refute(path, budget=60, out=tmp_path / folder, batches=2, evolution=True)
    assert state(tmp_path / "one") == state(tmp_path / "two")
    refute(path, budget=60, out=tmp_path / "one", batches=1)
    assert (state(tmp_path / "one")["number"], state(tmp_path / "one")["evolution"]) == (1, False)


@pytest.mark.more
def test_workers_do_not_change_the_result(write_claim, tmp_path):
    path = write_claim(bound=64)
    refute(path, budget=60, out=tmp_path / "one", batches=6)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        refute(path, budget=60, out=tmp_path / "two", batches=6, executor=pool)
    assert state(tmp_path / "one") == state(tmp_path / "two")


def test_mutations_reach_what_sampling_alone_does_not(write_claim):
    """The largest norm in Z^12 with entries up to 4 is 192; the best of 40 random batches is far below it."""
    path = write_claim(bound=192, sizes="({'n': 12},)")
    claim = read_claim(str(path))
    state = search_state.start(claim, 0, "")
    while state.number < 40:
        for batch in state.next_round(claim, str(path)):
            state.add(claim, batch, compute(claim, batch))
    random = compute(claim, Batch(str(path), 0, 0, 0, []))
    assert random.best[0][0] < -30
    assert state.best > -10


def test_a_check_that_denies_the_counterexample_fails_the_run(write_claim, tmp_path):
    path = write_claim(bound=3)
    with pytest.raises(ja.RunError, match=r"check\.py: does not confirm the counterexample"):
        refute(path, budget=60, out=tmp_path / "out")


def test_a_numerical_counterexample_needs_evidence(write_claim):
    import dataclasses

    from jaxattn.lab.refute import Evidence
    from jaxattn.lab.refute.space import from_lists

    claim = read_claim(str(write_claim()))
    start = [from_lists({"x": [4, 4, 0, 0]})]
    for contradicts in (True, False):
        outcome = Evidence(contradicts, "norm", "", "x", 0.0, 1.0, 2.0, "")
        numerical = dataclasses.replace(claim, evidence=lambda _, outcome=outcome: outcome)
        found = smallest(numerical, start)
        assert (found is not None) == contradicts
        assert numerical.kind == "numerical counterexample, exact target"
    assert found is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "'claim' does not exist"),
        ("claim = 1", "claim is a int; assign a jaxattn.lab.refute.Claim"),
    ],
)
def test_invalid_claims_are_rejected_in_one_line(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ja.InputError, match=message) as raised:
        read_claim(str(tmp_path / "mine.py"))
    assert "\n" not in str(raised.value)


def test_files_that_fail_or_do_not_exist_are_reported(tmp_path, write_claim):
    with pytest.raises(ja.InputError, match="no such file"):
        read_claim(str(tmp_path / "none.py"))
    with pytest.raises(ja.InputError, match="expected a Python file"):
        read_claim("none.toml")
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(UserCodeError, match=r"bad\.py raised an exception on import"):
        read_claim(str(tmp_path / "bad.py"))
    with pytest.raises(ja.InputError, match="does not exist; write it"):
        read_claim(str(write_claim(check="none.py")))
    with pytest.raises(ja.InputError, match="budget: must be positive"):
        refute(write_claim(), budget=0)


@pytest.mark.parametrize("broken", ["score", "assumptions", "exact"])
def test_exceptions_in_a_claim_are_reported_in_one_line(write_claim, tmp_path, call, broken):
    path = write_claim(check="")
    definition = "import dataclasses\ndef broken(one):\n    return 1 / 0\n"
    replaced = f"claim = dataclasses.replace(claim, {broken}=broken)\n"
    path.write_text(path.read_text() + definition + replaced)
    code, _, error = call("refute", path, "--quiet", "--out", tmp_path / "out")
    assert code == 1
    assert "norm.py: ZeroDivisionError in broken, line" in error


def test_command_prints_the_verdict_and_the_files(write_claim, tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("refute", write_claim(), "--budget", "60", "--quiet")
    assert code == 0
    assert out.startswith("falsified after ")
    assert "results/refute/norm/check.py" in out
    assert call("refute", write_claim(), "--workers", "0")[0] == 2


def test_witness_may_contain_fractions_and_arrays():
    witness = {
        "point": np.array([1, 2]),
        "margin": Fraction(1, 3),
        "whole": Fraction(4, 2),
        "of": (Fraction(5, 2),),
    }
    found = json.loads(json.dumps(_as_json(witness)))
    assert found == {"point": [1, 2], "margin": "1/3", "whole": 2, "of": ["5/2"]}
