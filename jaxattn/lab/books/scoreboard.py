"""The scoreboard of the theory: every claim of the paper, and what this project found beyond it, measured.

Studies are the sweep files in claims/, and some of the book of findings, where that is at hand; `VERDICTS`
says which of them measure a claim, and what judges them.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.api import Study
from jaxattn.lab.books import found, judges
from jaxattn.lab.books.board import CLAIMS, FOUND, Scoreboard, order
from jaxattn.lab.books.rows import Cell, Row
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.run import run as execute
from jaxattn.lab.results.load import load
from jaxattn.lab.study.seed import dataset

STUDIES = Path(__file__).with_name("claims")
# Of this checkout, not of the working directory: their code is executed. A folder `sweeps` next to an
# installed package would be somebody else's.
CHECKOUT = Path(__file__).parents[3]
FINDINGS = CHECKOUT / "sweeps" / "findings"
NO_OVERRIDES: Mapping[str, Sequence[str]] = MappingProxyType({})


class Verdict(NamedTuple):
    """How a claim is judged.

    Attributes:
        claim: the claim.
        studies: the studies whose cells the judge is given; their sweep files are claims/NAME.toml, those of
            findings NAME.toml in the book of findings.
        judge: reads them into rows.
    """

    claim: str
    studies: tuple[str, ...]
    judge: Callable[..., list[Row]]


# In the order of their rows.
VERDICTS = (
    Verdict("L4.1", ("law-independent",), judges.one_step_law),
    Verdict("L4.1", ("law-assumption1",), judges.one_step_law),
    Verdict("L4.1", ("law-texts",), judges.one_step_law),
    Verdict("MC", ("law-classes",), judges.one_step_law),
    Verdict("L4.2", ("base",), judges.unbounded),
    Verdict("L4.2", ("independent",), judges.unbounded),
    Verdict("L4.2", ("flow-texts",), judges.grows_on_texts),
    Verdict("T4.3", ("base",), judges.converges),
    Verdict("L4.4/4.5", ("base",), judges.selects),
    Verdict("V", ("base", "joint"), judges.jointly),
    Verdict("MR", ("several",), judges.several),
    Verdict("T4.3", ("independent",), judges.with_ties),
    Verdict("T4.3", ("several",), judges.with_ties),
    *(
        verdict
        for study in ("beyond", "independent")
        for verdict in (
            Verdict("T4.3", (study,), judges.direction_elsewhere),
            Verdict("L4.4/4.5", (study,), partial(judges.selects, promised=False)),
        )
    ),
    Verdict("label", ("label_window/study",), found.label),
    Verdict("cover", ("which_cover/claim",), found.cover),
    Verdict("mixture", ("which_mixture/claim",), found.mixture),
)


ON_TEXTS = ("law-texts", "flow-texts")
# Studies that take no more seeds than their sweep files have.
LIMITED = (*ON_TEXTS, "which_mixture/claim")


def run(
    *,
    seeds: int = 64,
    only: Sequence[str] = (),
    data_dir: Path | None = None,
    overrides: Mapping[str, Sequence[str]] = NO_OVERRIDES,
    folder: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Scoreboard:
    """Run the studies of the claims, and judge what they measured.

    Args:
        seeds: number of seeds, 0 .. seeds - 1, chosen before the run; 36 or more can show that a yes/no
            claim holds. On texts, and of the mixture, no more than their sweep files have.
        only: ids of the claims to measure, all by default; see `CLAIMS`.
        data_dir: folder of tensorflow-datasets that holds imdb_reviews, for the claims that need no
            Assumption 1; None to leave texts out.
        overrides: `key=value` by the names of studies, on top of their sweep files.
        folder: where the studies are run, each in a folder of its own: what is done there is not done again.
            A temporary one by default.
        reporter: where progress goes; nowhere by default.

    Returns:
        The scoreboard.

    Raises:
        InputError: fewer than two seeds, an unknown claim, texts that cannot be read or have more classes
            than two, texts without a claim to measure on them, a folder with results of another plan.
        RunError: a study could not be run.
        Interrupted: SIGINT or SIGTERM came; with a folder, the same call continues.
    """
    if seeds < 2:
        raise InputError(f"seeds: {seeds}; an interval over seeds needs at least 2")
    for name in only:
        if name not in CLAIMS:
            raise InputError(f"--only: no claim {name!r}; give some of {', '.join(CLAIMS)}")
    wanted = [verdict for verdict in VERDICTS if verdict.claim in (only or CLAIMS)]
    at_hand = (CHECKOUT / "pyproject.toml").is_file() and FINDINGS.is_dir()
    if not at_hand and set(only) & set(FOUND):
        raise InputError(
            f"--only: {', '.join(FOUND)} are measured by sweeps/findings of a checkout; pip install -e one"
        )
    if not at_hand:
        wanted = [verdict for verdict in wanted if verdict.claim not in FOUND]
    if data_dir is None:
        wanted = [verdict for verdict in wanted if not set(verdict.studies) & set(ON_TEXTS)]
    elif not any(set(verdict.studies) & set(ON_TEXTS) for verdict in wanted):
        raise InputError(f"data_dir: no claim of {', '.join(only)} is measured on texts; leave it out")
    names = dict.fromkeys(name for verdict in wanted for name in verdict.studies)
    studies = {name: _study(name, seeds, data_dir, overrides.get(name, ())) for name in names}
    with ExitStack() as stack:
        reporter = reporter or stack.enter_context(Reporter(quiet=True))
        if not at_hand and not only:
            reporter.note(f"{', '.join(FOUND)}: left out, their studies are in sweeps/findings of a checkout")
        folder = folder or stack.enter_context(tempfile.TemporaryDirectory())
        cells = _run(studies, Path(folder), reporter)
    rows = [row for verdict in wanted for row in verdict.judge(*(cells[name] for name in verdict.studies))]
    return Scoreboard(tuple(sorted(rows, key=order)))


def _study(name: str, seeds: int, data_dir: Path | None, overrides: Sequence[str]) -> Study:
    path = (FINDINGS if "/" in name else STUDIES) / f"{name}.toml"
    changes = [*([f"data.data_dir={data_dir}"] if name in ON_TEXTS else []), *overrides]
    if name in LIMITED:
        seeds = min(seeds, len(Study.read(path).seeds))
    return Study.read(path, [f"seeds={seeds}", *changes])


def _run(studies: Mapping[str, Study], folder: Path, reporter: Reporter) -> dict[str, list[Cell]]:
    """Run the studies that are not done yet; read their cells back."""
    devices.use_all_cores()
    texts = next((_words(study, reporter) for name, study in studies.items() if name in ON_TEXTS), "")
    cells = {}
    for number, (name, study) in enumerate(studies.items(), start=1):
        reporter.note(f"{number} of {len(studies)}: {name}")
        outcome = execute(study, folder / name, command="jaxattn claims", reporter=reporter)
        if outcome.errors:
            raise RunError(f"{folder / name}: {outcome.errors[0]['reason']}")
        # The records are all that is judged, and trained embeddings of texts are large.
        shutil.rmtree(folder / name / "checkpoints", ignore_errors=True)
        read, words = load(folder / name), texts if name in ON_TEXTS else ""
        cells[name] = [Cell(read, cell.number, len(study.seeds), words) for cell in study.cells]
    return cells


def _words(study: Study, reporter: Reporter) -> str:
    """Name the texts, which all studies on texts share, and their sizes."""
    corpus = dataset(study.base.data, 0, study.dtype, progress=reporter.loading).splits.train
    if corpus.num_classes != 2:
        raise InputError(f"data: {corpus.num_classes} classes; give texts with two labels")
    name = study.config["data"].get("dataset", "texts")
    return f"{name}, V = {corpus.vocab_size}, n = {corpus.num_examples}"
