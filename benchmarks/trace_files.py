"""Count the package files whose functions are called by one seed and by a whole command.

    python benchmarks/trace_files.py             # counts
    python benchmarks/trace_files.py --list      # and the files
    python benchmarks/trace_files.py --chain models/gradients.py:loss_and_gradients

The script counts calls to functions of the package with `sys.setprofile`, in all threads. It excludes code
that runs during imports. The study is the quickstart with few seeds and steps, for which the same code is
traced and compiled. A crossing is a call from a function in one file to a function in another file. With
`--chain`, the script prints the chain of package functions from the command to the first call of a given
function.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxattn
from jaxattn.lab.study import seed

PACKAGE = Path(jaxattn.__file__).parent
SWEEP = PACKAGE.parent / "sweeps" / "quickstart.toml"
SMALL = ("seeds=2", "phases.query.steps=20", "data.sequences=200", "data.test_sequences=100")


class Trace:
    """Record of the package functions that are called, and of the number of calls between files."""

    def __init__(self, wanted: str = "") -> None:
        self.wanted, self.chain = wanted, list[str]()
        self.functions: set[tuple[str, str, int]] = set()
        self.crossings: Counter[tuple[str, str]] = Counter()
        self._thread = threading.local()

    def count(self, function: Callable[[], Any]) -> None:
        """Call a function, and record all calls of package functions during the call."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            function()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _note(self, frame: Any, event: str, _: Any) -> None:
        importing = getattr(self._thread, "importing", 0)
        code = frame.f_code
        if code.co_name == "<module>":
            if event in ("call", "return"):
                self._thread.importing = importing + (1 if event == "call" else -1)
            return
        if event != "call" or importing or not _is_ours(code):
            return
        self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        if not self.chain and _name(code) == self.wanted:
            self.chain = _chain(frame)
        caller = frame.f_back
        while caller is not None and not _is_ours(caller.f_code):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.crossings[caller.f_code.co_filename, code.co_filename] += 1

    @property
    def files(self) -> list[str]:
        return sorted({str(Path(file).relative_to(PACKAGE)) for file, *_ in self.functions})


def _is_ours(code: Any) -> bool:
    return code.co_filename.startswith(f"{PACKAGE}/") and code.co_filename.endswith(".py")


def _name(code: Any) -> str:
    return f"{code.co_filename.removeprefix(f'{PACKAGE}/')}:{code.co_name}"


def _chain(frame: Any) -> list[str]:
    names = []
    while frame is not None:
        if _is_ours(frame.f_code):
            names.append(_name(frame.f_code))
        frame = frame.f_back
    return names[::-1]


def one_seed() -> Trace:
    """Run one seed from start to end, and return its trace."""
    study, trace = jaxattn.Study.read(SWEEP, SMALL), Trace()
    setting = study.cells[0].setting
    trace.count(lambda: list(seed.run_seed(setting, 0)))
    return trace


def command(wanted: str = "") -> Trace:
    """Run the quickstart with the command `jaxattn run`, and return its trace."""
    from jaxattn.lab.cli import main

    trace = Trace(wanted)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        words = ["run", str(SWEEP), "--out", f"{folder}/out", "--quiet"]
        words += [word for change in SMALL for word in ("--set", change)]
        sys.argv = ["jaxattn", *words]
        with contextlib.suppress(SystemExit):
            trace.count(main)
        assert Path(folder, "out", "report.html").exists()
    return trace


def report() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list the files")
    parser.add_argument("--chain", metavar="FILE:FUNCTION", help="print the calls that lead to a function")
    given = parser.parse_args()
    listing = given.list
    if given.chain:
        chain = command(given.chain).chain
        if not chain:
            parser.error(f"--chain {given.chain}: not called; a name is like models/gradients.py:loss")
        print("\n".join(chain))
        return
    for name, run in (("one seed", one_seed), ("command to page", command)):
        trace = run()
        crossings = sum(trace.crossings.values())
        print(f"{name}: {len(trace.files)} files, {len(trace.functions)} functions, {crossings} crossings")
        for file in trace.files if listing else ():
            print(f"    {file}")


if __name__ == "__main__":
    report()
