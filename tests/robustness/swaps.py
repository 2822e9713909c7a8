"""Batches in place of others: detected and computed again, or of no consequence.

Records, tables and checkpoints, together or separately, are copied, exchanged or renamed between batches of
one folder, and taken from folders with other steps, other batches of the same runs, and an earlier state.
"""

import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from damages import suffer
from folders import compiled_once, content, run, stopped, study

WHAT = (
    ("run.json", "records", "tokens", "checkpoint"), ("run.json", "records", "tokens"), ("run.json",),
    ("records", "tokens"), ("records",), ("checkpoint",),
)  # fmt: skip
HOW = ("copied", "copied", "exchanged", "renamed")


def attack(count: int, seed: int) -> dict[str, int]:
    """Replace batches by others `count` times; read, verify and run the folder each time.

    Returns:
        Number of times of each outcome.

    Raises:
        AssertionError: different numbers, an exception of another type, or a traceback.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        run(root / "longer", study(steps=4))
        run(root / "wider", study(chunk=2))
        with compiled_once():
            run(root / "same")
            expected = content(shutil.copytree(root / "same", root / "finished"))
            stopped(root / "half", 18)
            stopped(root / "earlier", 16)
            for number in range(count):
                drawn = random.Random(f"swap {seed} {number}")
                state = drawn.choice(["finished", "finished", "half"])
                folder = shutil.copytree(root / state, root / "damaged")
                other = drawn.choice(["same", "same", "longer", "wider", "half", "earlier"])
                words = _swap(folder, root / other, drawn)
                case = f"seed {seed}, swap {number}: {words}, {state}"
                try:
                    found = suffer(folder, expected)
                except Exception as error:
                    raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
                outcomes[f"{state}: {found}"] += 1
                print(f"{number + 1} of {count}: {case}: {found}", file=sys.stderr, flush=True)
                shutil.rmtree(folder)
    return dict(sorted(outcomes.items()))


def _swap(folder: Path, source: Path, drawn: random.Random) -> str:
    """Put a batch, or parts of it, in the place of another batch; return what was done."""
    mine, theirs = sorted((folder / "runs").iterdir()), sorted((source / "runs").iterdir())
    target = drawn.choice(mine)
    how = drawn.choice(HOW)
    taken = drawn.choice(theirs if how == "copied" else [path for path in mine if path != target])
    if how == "copied" and drawn.random() < 0.2:
        # A batch that the study does not have, or has under this name already.
        shutil.rmtree(folder / "runs" / taken.name, ignore_errors=True)
        shutil.copytree(taken, folder / "runs" / taken.name)
        return f"{taken.name} of {source.name} added"
    if how == "renamed":
        shutil.rmtree(target)
        taken.rename(target)
        return f"{taken.name} renamed to {target.name}"
    what = drawn.choice(WHAT)
    for piece in what:
        from_, to = _piece(taken, piece), _piece(target, piece)
        if from_ is None:
            continue
        to = to or target / from_.name
        kept = to.rename(folder / "kept") if to.exists() else None
        if how == "copied":
            (shutil.copytree if from_.is_dir() else shutil.copy)(from_, to)
            if kept:
                shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
        else:
            from_.rename(to)
            if kept:
                kept.rename(from_)
    whose = f"{taken.name} of {source.name}" if how == "copied" else taken.name
    return f"{'+'.join(what)} of {whose} {how} to {target.name}"


def _piece(batch: Path, piece: str) -> Path | None:
    """Return a part of a batch, finished or not."""
    names = {"checkpoint": ("checkpoint", "state-*")}.get(piece, (piece, f"{piece}.parquet", f"{piece}-*"))
    return next((path for name in names for path in sorted(batch.glob(name))), None)
