"""Files for a counterexample: counterexample.json, check.py, a page and a picture.

`check.py` is a copy of the claim's check script in which two lines are replaced,

    INSTANCE = {...}
    CONTROL = {...}

The script derives both sides from these integers with the standard library alone. It exits with status 0 if
the statement is violated for INSTANCE and holds for CONTROL, and with another status otherwise.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxattn.core.errors import InputError, RunError, writing
from jaxattn.lab.refute.claim import Claim, Evidence, Sides
from jaxattn.lab.refute.space import Instance, to_lists

# Maximum number of lines of a check script that are not blank, and seconds that it may take.
LINES, CHECK_S = 30, 60
# A fraction is printed in full on the page up to this number of characters.
_LONGEST = 60


class Counterexample(NamedTuple):
    """An instance that violates a claim.

    Attributes:
        instance: the integers.
        sides: both sides, in exact arithmetic.
        evidence: numerical evidence; None if `sides` decides the statement.
        shrunk_from: the instance that the search found.
        shrink_calls: number of candidates that shrinking tried.
    """

    instance: Instance
    sides: Sides
    evidence: Evidence | None
    shrunk_from: Instance
    shrink_calls: int


def delete(out: Path) -> None:
    """Delete the files of an earlier search."""
    for name in ("counterexample.json", "check.py", "counterexample.md", "picture.png", "verdict.json"):
        with writing(out / name):
            (out / name).unlink(missing_ok=True)


def contents(claim: Claim, one: Counterexample, found_by: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of counterexample.json."""
    return {
        "verdict": claim.kind if not one.sides.boundary else f"boundary case: {one.sides.boundary}",
        "statement": claim.statement,
        "source": claim.source,
        "hypothesis": claim.hypothesis,
        "repaired": claim.repaired,
        "instance": to_lists(one.instance),
        "control": to_lists({name: np.asarray(x) for name, x in claim.control.items()}),
        "witness": _as_json(one.sides.witness),
        "left": str(Fraction(one.sides.left)),
        "right": str(Fraction(one.sides.right)),
        "evidence": one.evidence._asdict() if one.evidence else None,
        "shrunk_from": to_lists(one.shrunk_from),
        "found_by": found_by,
    }


def write(
    claim: Claim, one: Counterexample, found_by: dict[str, Any], script: Path | None, out: Path
) -> list[Path]:
    """Write all files of a counterexample, and run its check.py.

    Args:
        claim: the claim.
        one: the counterexample.
        found_by: command, seed, numbers and times, for the record.
        script: the claim's check script; None for none.
        out: folder.

    Returns:
        Paths of the files.

    Raises:
        RunError: check.py denies the counterexample, or a file cannot be written.
    """
    record = contents(claim, one, found_by)
    paths = [out / "counterexample.json"]
    checked = ""
    if script is not None:
        path = out / "check.py"
        with writing(path):
            path.write_text(filled_script(script, record["instance"], record["control"]), encoding="utf-8")
        record["check"] = run_check(path)
        checked = f"{record['check']['output']}\n"
        paths.append(path)
    with writing(paths[0]):
        paths[0].write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    picture = draw(claim, one.instance, out / "picture.png")
    page = out / "counterexample.md"
    with writing(page):
        page.write_text(page_text(record, checked, picture is not None), encoding="utf-8")
    return [*paths, page, *([picture] if picture else [])]


def filled_script(script: Path, instance: dict[str, Any], control: dict[str, Any]) -> str:
    """Return the text of a check script with an instance and a control instance.

    Raises:
        InputError: the script lacks one of the two lines, or has more than 30 lines that are not blank.
    """
    text = script.read_text(encoding="utf-8")
    if (lines := sum(bool(line.strip()) for line in text.splitlines())) > LINES:
        raise InputError(f"{script}: has {lines} lines that are not blank; shorten it to {LINES}")
    for name, value in (("INSTANCE", instance), ("CONTROL", control)):
        line = re.compile(rf"^{name} = .*$", re.MULTILINE)
        if (count := len(line.findall(text))) != 1:
            raise InputError(f"{script}: has {count} lines `{name} = ...`; write exactly one")
        text = line.sub(f"{name} = {value!r}", text)
    return text


def run_check(path: Path) -> dict[str, Any]:
    """Run a check script in a separate Python without site packages; return its output and time in seconds.

    Raises:
        RunError: the script denies the counterexample, or fails.
    """
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(path)],
            capture_output=True,
            text=True,
            timeout=CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{path}: takes more than {CHECK_S} s; make the check faster") from None
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise RunError(f"{path}: does not confirm the counterexample ({reason}); compare it with `exact`")
    return {"output": done.stdout.strip(), "seconds": round(time.perf_counter() - began, 3)}


def draw(claim: Claim, instance: Instance, path: Path) -> Path | None:
    """Draw an instance, if the claim has a drawing; return the path of the picture."""
    if claim.draw is None:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.5, 4.0), layout="constrained")
    try:
        claim.draw(instance, axes)
        with writing(path):
            figure.savefig(path, dpi=150)
    finally:
        plt.close(figure)
    return path


def page_text(record: dict[str, Any], checked: str, has_picture: bool) -> str:
    """Return the page of a counterexample in Markdown."""
    parts = [
        f"# {record['verdict'][:1].upper()}{record['verdict'][1:]}",
        f"**Statement.** {record['statement']}",
        f"**Source.** {record['source']}",
        f"**Hypothesis used.** {record['hypothesis']}",
        "## Instance",
        *(table(name, value) for name, value in record["instance"].items()),
    ]
    if has_picture:
        parts.append("![The instance](picture.png)")
    where = ", ".join(f"{name} = {_plain(value)}" for name, value in record["witness"].items())
    parts += ["## Violation", f"{where}." if where else "", f"left = {number(record['left'])}"]
    exact = "floating point" if record["verdict"] == "numerical counterexample" else "exact arithmetic"
    parts += [f"right = {number(record['right'])}", f"left > right, in {exact}."]
    if evidence := record["evidence"]:
        parts.append(_evidence_text(evidence))
    if record["repaired"]:
        parts.append(f"**Repaired statement.** {record['repaired']}")
    parts += ["## Control", "The statement holds for this instance."]
    parts += [table(name, value) for name, value in record["control"].items()]
    if checked:
        parts += ["## Check", f"```\n$ python check.py\n{checked}```"]
    by = record["found_by"]
    counts = f"{by['tried']:,} instances ({by['inside']:,} inside the assumptions), {by['seconds']:.1f} s"
    parts += ["## Found by", f"```\n{by['command']}\n```", f"Seed {by['seed']}, {counts}."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _as_json(value: Any) -> Any:
    """Convert a witness to JSON values: fractions become integers or "p/q", and arrays become lists."""
    if isinstance(value, Mapping):
        return {str(name): _as_json(x) for name, x in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_as_json(x) for x in value]
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else str(value)
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: Any) -> str:
    return f"({', '.join(map(_plain, value))})" if isinstance(value, list) else str(value)


def _evidence_text(evidence: dict[str, Any]) -> str:
    return (
        f"Numerical evidence: {evidence['quantity']} is in "
        f"[{evidence['low']:.6g}, {evidence['high']:.6g}] ({evidence['interval']}); the statement predicts "
        f"{evidence['predicted']:g}. Status `{evidence['status']}`; {evidence['certificate']}. The "
        "files check the target alone, not that the flow converges to it."
    )


def table(name: str, value: Any) -> str:
    """Return an array of at most two axes as a Markdown table, or as nested lists otherwise."""
    x = np.asarray(value)
    if x.ndim == 0 or x.ndim > 2:
        return f"`{name}` = {value}"
    rows = x.reshape(len(x), -1)
    head = f"| `{name}` | " + " | ".join(str(k) for k in range(rows.shape[1])) + " |"
    lines = [f"| {i} | " + " | ".join(map(str, row)) + " |" for i, row in enumerate(rows.tolist())]
    return "\n".join([head, "|---" * (rows.shape[1] + 1) + "|", *lines])


def number(text: str) -> str:
    """Format a fraction with its decimal value; a long one is abbreviated."""
    value = Fraction(text)
    shown = text if len(text) <= _LONGEST else f"a fraction with {len(text):,} characters"
    return shown if value.denominator == 1 else f"{shown} ≈ {float(value):.6g}"
