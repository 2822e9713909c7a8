"""Mutations of the package, drawn with a fixed seed, each tried against the tests that reach its place.

`python tests/mutations.py --count 60 --sets default slow` works on a copy, in which a mutated place reads
`(mutated if switch(k) else original)`. A first run of the tests writes down which of them ask which switch;
then each mutation is switched on for those alone, until one fails. `--tests FOLDER` takes the tests of
another revision of the same package, so that two sets of tests can be compared; `--within jaxattn/lab/storage
--among tests/storage` draws from a folder and tries some tests alone.
60 mutations take an hour or two; `--part 0:30` and `--part 30:60` try them in two halves.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SETS = {
    "default": "not more and not slow and not exhaustive and not chips",
    "more": "more",
    "slow": "slow",
    "chips": "chips",
}
FLIPPED = {
    ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "/",
    ast.Div: "*", ast.Pow: "*", ast.FloorDiv: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
# Also imported by processes that tests start. Outside of a test, all tests ask: it is asked by an import.
SWITCH = '''"""Which mutation is on, and who asks."""
import os
_asked = set()
def switch(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    log = os.environ.get("MUTATIONS_LOG")
    if log and (number, test) not in _asked:
        _asked.add((number, test))
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{number}\\t{test}\\n".encode())
        os.close(file)
    return os.environ.get("MUTATION") == str(number)
'''


class Mutation(NamedTuple):
    """An expression, by its place in bytes, and what it is replaced by."""

    path: str
    line: int
    begin: int
    end: int
    before: str
    after: str


class Outcome(NamedTuple):
    """How many tests reach a mutation, and the one that fails with it; none if it survives."""

    reached: int
    killer: str


def mutations(path: Path) -> Iterator[Mutation]:
    """List what can be changed in a file: comparisons, arithmetic, not, and, or, signs, numbers."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def text(node: ast.AST) -> str:
        return source[starts[node.lineno - 1] + node.col_offset : end(node)].decode()

    def end(node: ast.AST) -> int:
        return starts[node.end_lineno - 1] + node.end_col_offset

    for node in _expressions(ast.parse(source)):
        after = _changed(node, text)
        if after:
            begin = starts[node.lineno - 1] + node.col_offset
            yield Mutation(
                path.relative_to(ROOT).as_posix(), node.lineno, begin, end(node), text(node), after
            )


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through code that runs: no annotations, patterns, or pieces of texts."""
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            known = isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.pattern)
            if known and name not in ("annotation", "returns"):
                yield child
                yield from _expressions(child)


def _changed(node: ast.AST, text) -> str:
    """Write the mutated expression; nothing for what is left as it is."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in FLIPPED:
            return f"({text(left)}) {FLIPPED[type(op)]} ({text(right)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in FLIPPED:
            return f"({text(left)}) {FLIPPED[type(op)]} ({text(right)})"
        case ast.BoolOp(op=op, values=values):
            return f" {FLIPPED[type(op)]} ".join(f"({text(value)})" for value in values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return f"({text(operand)})"
        case ast.Constant(value=bool(value)):
            return str(not value)
        case ast.Constant(value=int(value)):
            return str(value + 1)
        case ast.Constant(value=float(value)):
            return str(2 * value or 1.0)
    return ""


def draw(count: int, seed: int, within: str = "jaxattn") -> list[Mutation]:
    """Draw mutations of which none is within another."""
    listed = [each for path in sorted((ROOT / within).rglob("*.py")) for each in mutations(path)]
    drawn: list[Mutation] = []
    for each in random.Random(seed).sample(listed, len(listed)):
        apart = all(each.path != x.path or each.end <= x.begin or x.end <= each.begin for x in drawn)
        if apart and len(drawn) < count:
            drawn.append(each)
    return drawn


def write_copy(folder: Path, drawn: list[Mutation], tests: Path) -> None:
    """Copy what git tracks, with a switch at each mutation; line numbers stay."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    shutil.copytree(tests, folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "mutations_switch.py").write_text(SWITCH, encoding="utf-8")
    for number, each in sorted(enumerate(drawn), key=lambda pair: -pair[1].begin):
        path = folder / each.path
        source = path.read_bytes()
        asked = f"__import__('mutations_switch').switch({number})"
        written = f"(({each.after}) if {asked} else ({each.before}))".encode()
        path.write_bytes(source[: each.begin] + written + source[each.end :])
    for path in {folder / each.path for each in drawn}:
        _find_switch(path, folder)


def _find_switch(path: Path, folder: Path) -> None:
    """Let a module find the switch, also if it runs alone: behind its docstring, so that lines stay."""
    lines = path.read_bytes().splitlines(keepends=True)
    first = ast.parse(b"".join(lines)).body[0]
    line, column = lines[first.end_lineno - 1], first.end_col_offset
    found = f"; __import__('sys').path.append({str(folder)!r})".encode()
    lines[first.end_lineno - 1] = line[:column] + found + line[column:]
    path.write_bytes(b"".join(lines))


def pytest(folder: Path, *words: str, seconds: float | None = None, **environment: str) -> tuple[int, str]:
    """Run tests of the copy: their status, and what they print; a run that takes too long has failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={folder}/.pytest_cache", *words]
    kept = os.environ | {"PYTHONPATH": str(folder)} | environment
    try:
        done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return 1, f"FAILED after {seconds:.0f} s"
    return done.returncode, done.stdout


def reached(folder: Path, marked: str, among: list[str]) -> dict[int, list[str]]:
    """Run a set of tests without mutations, and return which of them reach which."""
    log = folder / "asked"
    log.unlink(missing_ok=True)
    status, text = pytest(folder, "-m", marked, *among, MUTATIONS_LOG=str(log))
    if status:
        raise SystemExit(f"the tests fail without any mutation:\n{text[-5000:]}")
    found = defaultdict(set)
    for line in log.read_text(encoding="utf-8").splitlines():
        number, _, test = line.partition("\t")
        found[int(number)].add(test)
    # What is asked while a module is imported is reached by all tests.
    return {number: among if "" in tests else sorted(tests) for number, tests in found.items()}


def own_first(folder: Path, tests: list[str], path: str) -> list[str]:
    """Put the tests of a module before others that reach it: what kills a mutation is mostly one of them."""
    room, _, name = path.replace("jaxattn/", "tests/", 1).rpartition("/")
    own = [each.relative_to(folder).as_posix() for each in sorted((folder / room).glob(f"test_{name}"))]
    return [*own, *tests] if tests else []


def attempt(folder: Path, number: int, tests: list[str], marked: str, seconds: float) -> Outcome:
    """Switch a mutation on for the tests that reach it."""
    if not tests:
        return Outcome(0, "")
    (folder / f"tests-{number}").write_text("\n".join(tests), encoding="utf-8")
    options = ("-x", "-n0", "-m", marked, f"@{folder}/tests-{number}")
    status, text = pytest(folder, *options, seconds=seconds, MUTATION=str(number))
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    # A mutation may also keep the package from being imported, before there is a test.
    if status not in (0, 1, 2) and "ImportError while loading conftest" not in text:
        raise SystemExit(f"mutation {number}: pytest ended with status {status}:\n{text[-2000:]}")
    return Outcome(len(tests), "" if status == 0 else (failed or ["an import"])[0][:110])


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def _part(text: str) -> slice:
    found = re.fullmatch(r"(\d+):(\d*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a range such as 30:60, got {text!r}")
    return slice(int(found[1]), int(found[2]) if found[2] else None)


def main() -> None:
    """Draw, run the sets of tests once, try each mutation, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=_positive, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=["default"])
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="tests of another revision")
    parser.add_argument("--workers", type=int, default=2, help="mutations that are tried at the same time")
    parser.add_argument("--seconds", type=float, default=1800.0, help="the most for one mutation")
    parser.add_argument("--within", default="jaxattn", help="the folder to draw from")
    parser.add_argument("--among", nargs="+", default=["tests"], help="the tests to try")
    parser.add_argument("--part", type=_part, default="0:", help="which mutations to try, such as 30:60")
    given = parser.parse_args()
    drawn = draw(given.count, given.seed, given.within)
    if not drawn:
        raise SystemExit(
            f"--within {given.within}: nothing there that can be changed; give a folder of the package"
        )
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.workers) as pool:
        folder = Path(name).resolve()
        write_copy(folder, drawn, given.tests)
        left = list(range(len(drawn)))[given.part]
        tried_in_all = len(left)
        print("| set | place | mutation | tests | killed by |\n|---|---|---|---|---|")
        for chosen in given.sets:
            by_tests, marked = reached(folder, SETS[chosen], given.among), SETS[chosen]
            trials = {
                pool.submit(
                    attempt,
                    folder,
                    number,
                    own_first(folder, by_tests.get(number, []), drawn[number].path),
                    marked,
                    given.seconds,
                ): number
                for number in left
            }
            tried = {}
            for trial in as_completed(trials):
                number = trials[trial]
                tried[number], each = trial.result(), drawn[number]
                outcome = tried[number]
                change = f"`{each.before}` → `{each.after}`".replace("\n", " ").replace("|", "\\|")
                place = f"{each.path}:{each.line}"
                print(f"| {chosen} | {place} | {change} | {outcome.reached} | {outcome.killer} |", flush=True)
            left = sorted(number for number, outcome in tried.items() if not outcome.killer)
            killed = tried_in_all - len(left)
            print(f"after {chosen}: {killed} of {tried_in_all} killed", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
