"""Files that prove a counterexample: counterexample.json, check.py and a picture, and tables for its page.

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
import pandas as pd

from jaxattn.core.errors import InputError, RunError, writing
from jaxattn.lab.pages.layout import markdown
from jaxattn.lab.refute.claim import Claim, Evidence, Sides
from jaxattn.lab.refute.space import Instance, to_lists

RECORD, SCRIPT, PICTURE, PAGE = "counterexample.json", "check.py", "picture.png", "counterexample.md"
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

    def verdict(self, claim: Claim) -> str:
        """Return the verdict on the claim, such as "falsified" or "falsified (boundary case)"."""
        return claim.kind + " (boundary case)" * bool(self.sides.boundary)


def contents(claim: Claim, one: Counterexample, found_by: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of counterexample.json."""
    return {
        "verdict": one.verdict(claim),
        "boundary": one.sides.boundary,
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
    record, paths = contents(claim, one, found_by), [out / RECORD]
    if script is not None:
        paths.append(out / SCRIPT)
        with writing(paths[-1]):
            text = filled_script(script, record["instance"], record["control"])
            paths[-1].write_text(text, encoding="utf-8")
        record["check"] = run_check(paths[-1])
    if claim.draw is not None:
        paths.append(out / PICTURE)
        draw(claim, one.instance, paths[-1])
    paths.append(out / PAGE)
    with writing(out):
        paths[0].write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        paths[-1].write_text(page_text(record, claim.draw is not None), encoding="utf-8")
    return paths


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


def draw(claim: Claim, instance: Instance, path: Path) -> None:
    """Draw an instance with the drawing of its claim."""
    import matplotlib.pyplot as plt

    assert claim.draw is not None
    figure, axes = plt.subplots(figsize=(4.5, 4.0), layout="constrained")
    try:
        claim.draw(instance, axes)
        with writing(path):
            figure.savefig(path, dpi=150)
    finally:
        plt.close(figure)


def tables(record: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the tables of a counterexample by title: its arrays, the violation, the control, the check.

    Args:
        record: contents of counterexample.json.
    """
    exact = "floating point" if _is_floating(record) else "exact arithmetic"
    found = {f"Counterexample: {name}": _array(name, x) for name, x in record["instance"].items()}
    found[f"Violation, both sides in {exact}"] = pd.DataFrame(
        _violation(record), columns=["quantity", "value"]
    )
    for name, x in record["control"].items():
        found[f"Control, for which the statement holds: {name}"] = _array(name, x)
    if check := record.get("check"):
        found["Check with the standard library alone"] = pd.DataFrame(
            {"python check.py": check["output"].splitlines()}
        )
    return found


def page_text(record: Mapping[str, Any], has_picture: bool) -> str:
    """Return the page of a counterexample in Markdown."""
    by = record["found_by"]
    parts = [
        f"# {record['verdict'][:1].upper()}{record['verdict'][1:]}",
        f"**Statement.** {record['statement']}",
        f"**Source.** {record['source']}",
        f"**Hypothesis used.** {record['hypothesis']}",
        f"**Repaired statement.** {record['repaired']}" * bool(record["repaired"]),
        f"![The instance]({PICTURE})" * has_picture,
        *(f"## {title}\n\n{markdown(table)}" for title, table in tables(record).items()),
        f"## Found by\n\n```\n{by['command']}\n```",
        f"Seed {by['seed']}, {by['tried']:,} instances ({by['inside']:,} inside the assumptions), "
        f"{by['seconds']:.1f} s.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _violation(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows (quantity, value): the degenerate case, the witness, both sides, and the evidence."""
    rows = [("degenerate case", reason)] if (reason := record.get("boundary")) else []
    rows += [(name, _plain(value)) for name, value in record["witness"].items()]
    for side in ("left", "right"):
        value = Fraction(record[side])
        rows.append((f"{side} side", f"{float(value):.6g}" if _is_floating(record) else _number(value)))
    if evidence := record["evidence"]:
        low, high = (f"{evidence[end]:.6g}" for end in ("low", "high"))
        rows += [
            (evidence["quantity"], f"in [{low}, {high}] ({evidence['interval']})"),
            ("value that the statement predicts", f"{evidence['predicted']:g}"),
            ("how the flow ended", f"status {evidence['status']}; {evidence['certificate']}"),
        ]
        if not _is_floating(record):
            rows.append(
                ("not proved", "that the flow converges to the target; check.py derives the target alone")
            )
    return rows


def _is_floating(record: Mapping[str, Any]) -> bool:
    """Return whether the target of a numerical counterexample is in floating point."""
    return str(record["verdict"]).partition(" (")[0] == "numerical counterexample"


def _array(name: str, value: Any) -> pd.DataFrame:
    """Return an array as a table; its first column, headed by its name, holds the indices of the rows."""
    x = np.asarray(value)
    rows = x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)
    shape = x.shape[:-1] if x.ndim > 1 else rows.shape[:1]
    labels = [", ".join(map(str, index)) for index in np.ndindex(*shape)]
    return pd.DataFrame({name: labels} | {str(k): map(str, column) for k, column in enumerate(rows.T)})


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


def _number(value: Fraction) -> str:
    """Format a fraction with its decimal value; a long one is abbreviated."""
    text = str(value)
    shown = text if len(text) <= _LONGEST else f"a fraction with {len(text):,} characters"
    return shown if value.denominator == 1 else f"{shown} ≈ {float(value):.6g}"
