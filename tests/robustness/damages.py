"""Damage of any file of a finished or unfinished folder: it is reported and repaired, or of no consequence.

A file is truncated, emptied, deleted, or replaced by a folder, a FIFO or a link out of the folder, or one of
its bits is flipped. Whole folders are deleted or replaced, too.
"""

import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from folders import (
    SEEDS,
    Content,
    batches,
    bytes_of,
    check_content,
    check_params,
    check_tables,
    compiled_once,
    content,
    listening,
    refusal,
    run,
    stopped,
)

import jaxattn as ja
from jaxattn.lab.pages import report
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import memo

KINDS = ("a bit", "cut off", "emptied", "deleted", "a folder", "a FIFO", "a link out")
# A report and a log contribute nothing to the results.
NO_RESULT = ("metrics.jsonl", "report.html", "summary.csv", "figures")


def attack(count: int, seed: int) -> dict[str, int]:
    """Damage a file `count` times; read, verify and run the folder each time.

    Returns:
        Number of times of each outcome.

    Raises:
        AssertionError: different numbers, an exception of another type, or a traceback.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, compiled_once():
        root = Path(name).resolve()
        run(root / "finished")
        report.write_report(root / "finished")
        stopped(root / "half", 18)
        expected = content(root / "finished")
        for number in range(count):
            drawn = random.Random(f"damage {seed} {number}")
            state, kind = drawn.choice(["finished", "half"]), KINDS[number % len(KINDS)]
            folder = shutil.copytree(root / state, root / "damaged", symlinks=True)
            path = _choose(folder, drawn, kind)
            case = f"seed {seed}, damage {number}: {kind}: {path.relative_to(folder)}, {state}"
            _damage(kind, path, root / "outside", drawn)
            outside = bytes_of(root / "outside") if (root / "outside").exists() else {}
            try:
                found = suffer(folder, expected, path)
                assert not outside or bytes_of(root / "outside") == outside, "something outside was changed"
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            outcomes[f"{kind}, {state}: {found}"] += 1
            print(f"{number + 1} of {count}: {case}: {found}", file=sys.stderr, flush=True)
            shutil.rmtree(folder)
            shutil.rmtree(root / "outside", ignore_errors=True)
    return dict(sorted(outcomes.items()))


def _choose(folder: Path, drawn: random.Random, kind: str) -> Path:
    """Choose the kind of file first, because most files are parts of checkpoints."""
    every = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    if kind in KINDS[3:]:
        every += [path for path in folder.rglob("*") if path.is_dir()]

    def group(path: Path) -> str:
        first, *rest = path.relative_to(folder).parts
        return f"{first} {len(rest)} {rest[1].partition('-')[0]}" if len(rest) > 1 else f"{first} {len(rest)}"

    chosen = drawn.choice(sorted({group(path) for path in every}))
    return drawn.choice(sorted(path for path in every if group(path) == chosen))


def _damage(kind: str, path: Path, outside: Path, drawn: random.Random) -> None:
    if kind == "a bit":
        content = bytearray(path.read_bytes())
        bit = drawn.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
    elif kind in ("cut off", "emptied"):
        os.truncate(path, drawn.randrange(path.stat().st_size) if kind == "cut off" else 0)
    else:
        outside.mkdir()
        path.rename(outside / "moved")
        if kind == "a folder":
            path.mkdir()
        elif kind == "a FIFO":
            os.mkfifo(path)
        elif kind == "a link out":
            path.symlink_to(outside / "moved")


def suffer(folder: Path, expected: Content, path: Path | None = None) -> str:
    """Use a damaged folder as a user would, check every result, and return the outcome.

    `path` is the damaged file, if there is only one. In the end, the study is as without damage.
    """
    first, name = (*path.relative_to(folder).parts, "", "")[:2] if path else ("", "")
    # There is nothing to warn about if a whole batch has gone.
    silent = (
        path is None or path.name in NO_RESULT or (path.parent.name == "runs" and not os.path.lexists(path))
    )
    others = {
        key: one for key, one in batches(folder).items() if path and key != name and path.name != "runs"
    }
    with listening() as heard:
        told = refusal(lambda: check_tables(folder, expected))
        for seed in SEEDS:
            refusal(lambda seed=seed: check_params(ja.load(folder).params(seed=seed), expected.params[seed]))
        lines: list[str] = []
        told += refusal(lambda: lines.extend(verify(folder)))
        # That an unfinished study is not finished is no damage.
        told += "".join(line for line in lines if not line.startswith(f"{folder}: "))
        warned: list[str] = []
        if barred := refusal(lambda: warned.extend(run(folder))):
            named = Path(barred.partition(": ")[0])
            assert path, barred
            assert named.is_relative_to(folder / first), barred
            _remove(named if os.path.lexists(named) else path)
            warned = run(folder)
        elif memo.KEY.fullmatch(name) and not silent:
            assert len(warned) == 1, warned
            assert str(folder / "runs" / name) in warned[0], warned
        assert others.items() <= batches(folder).items(), "another batch was changed"
        check_content(folder, expected)
        assert not list((folder / "runs").glob("*.partial-*")), "an unfinished batch is left"
        repaired = _mend(folder)
        check_content(folder, expected)
    assert "Traceback" not in heard[0], heard[0]
    told += "".join(warned)
    outcome = "refused, repaired" if barred else "reported, repaired" if told else "of no consequence"
    return outcome + repaired


def _mend(folder: Path) -> str:
    """Follow the advice of the verification until nothing is left; return what was necessary."""
    done = []
    if any("jaxattn report" in line for line in verify(folder)):
        for path in [folder / "figures", *(folder / "figures").glob("*"), *folder.glob("*.*")]:
            if path.is_symlink() or (path.exists() and not path.is_file() and path != folder / "figures"):
                _remove(path)
        report.write_report(folder)
        done.append("drawn again")
    if verify(folder):
        for name, _ in list(memo.unwanted(folder)):
            memo.delete_batch(folder, name)
        done.append("pruned")
    assert verify(folder) == []
    return "".join(f", {word}" for word in done)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
