"""Command that searches for counterexamples to a claim."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from jaxattn.core.errors import InputError
from jaxattn.lab.cli.console import print_json, print_line, print_wrapped
from jaxattn.lab.cli.options import Json, Quiet, keep_compiled, option, require_local_folder


def refute(
    claim: Annotated[Positional[str], option(metavar="CLAIM.py[:NAME]")],
    /,
    budget: float = 300.0,
    seed: int = 0,
    out: Annotated[Path | None, option(metavar="DIR")] = None,
    workers: int = 1,
    evolution: bool = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Search for a counterexample to a claim.

    A claim is a Python file that defines a space of small integer instances, a score, and the statement in
    rational arithmetic; see docs/howto/refute.md. The file is imported. The search ends at the first
    counterexample that is not a degenerate case. It is shrunk, proved in exact arithmetic, and written with
    a script, check.py, that confirms it with Python's standard library alone. An interrupted search resumes
    after its last batch. The exit status is 0 whether or not there is a counterexample. `jaxattn reproduce`
    searches all claims of a book.

    Example: jaxattn refute sweeps/refute/frank_wolfe.py --budget 30

    Args:
        claim: Python file that defines `claim`, or another name in it.
        budget: Time for the search in seconds, including compilation and the calls that it resumes.
        seed: Seed of the search.
        out: Folder for the results; by default results/refute/CLAIM, or CLAIM-seedN for a seed N > 0.
        workers: Number of processes that score batches.
        evolution: Let SciPy's differential evolution choose the instances of each batch.
    """
    from concurrent.futures import ProcessPoolExecutor
    from contextlib import nullcontext
    from multiprocessing import get_context

    from jaxattn.lab.engine.progress import Reporter
    from jaxattn.lab.refute import refute as search

    if out is not None:
        require_local_folder(out)
    if workers < 1:
        raise InputError(f"--workers {workers}: must be at least 1")
    keep_compiled()
    command = shlex.join(["jaxattn", *sys.argv[1:]])
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers > 1 else nullcontext()
    with Reporter(quiet) as reporter, pool as executor:
        found = search(
            claim,
            budget=budget,
            seed=seed,
            out=out,
            executor=executor,
            evolution=evolution,
            command=command,
            show=reporter.update,
        )
    if as_json:
        print_json({"verdict": found.verdict, "sentence": found.sentence, "tried": found.tried})
        return 0
    print_wrapped(found.sentence)
    for path in found.files:
        print_line(path)
    return 0
