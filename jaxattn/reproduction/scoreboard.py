"""The scoreboard of the theory: every claim of the paper, measured, with intervals and certificates."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from jaxattn.api import Study
from jaxattn.claims import judges, studies, words
from jaxattn.claims.measured import Measured
from jaxattn.claims.rows import FAILS, Row
from jaxattn.claims.studies import Plan, TextPlan
from jaxattn.data.readers import Tfds
from jaxattn.data.source import Source
from jaxattn.engine import devices
from jaxattn.engine.manifest import PACKAGES
from jaxattn.engine.progress import Reporter
from jaxattn.engine.run import run as execute
from jaxattn.errors import InputError, RunError
from jaxattn.results.load import load
from jaxattn.storage import origin

CLAIMS = tuple(words.STATEMENTS)
ON_TEXTS = ("L4.1", "L4.2")
PLAN, TEXT_PLAN = Plan(), TextPlan()


class Verdict(NamedTuple):
    """How a claim is judged.

    Attributes:
        claim: the claim.
        studies: the studies whose cells the judge is given.
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
)


@dataclass(frozen=True)
class Scoreboard:
    """The rows, in the order of the paper's claims; promised ones first.

    Attributes:
        rows: the rows.
    """

    rows: tuple[Row, ...]

    @property
    def status(self) -> int:
        """Exit status: 1 if a promised row fails, else 0."""
        return int(any(row.verdict == FAILS for row in self.rows))

    def table(self) -> pd.DataFrame:
        """Lay out for reading: claim, setting, seeds, measured, value, tolerance, verdict, certificate."""
        return pd.DataFrame(
            {
                "claim": row.claim.name,
                "setting": row.claim.setting,
                "seeds": row.counted,
                "measured": row.measured,
                "value": row.text,
                "tolerance": row.tolerance.text if row.tolerance else "-",
                "verdict": row.verdict,
                "certificate": row.certificate,
            }
            for row in self.rows
        )

    def numbers(self) -> pd.DataFrame:
        """Lay out for computing: `table` with statement and promised, and all numbers as numbers.

        Returns:
            `seeds` counts the seeds that have a value, `missing` those that have none, and `why` says why.
        """
        frame = self.table().drop(columns="value")
        frame["seeds"] = [row.seeds for row in self.rows]
        for place, name in enumerate(("missing", "why"), list(frame.columns).index("seeds") + 1):
            frame.insert(place, name, [getattr(row, name) for row in self.rows])
        frame.insert(1, "statement", [row.claim.statement for row in self.rows])
        frame.insert(3, "promised", [row.claim.promised for row in self.rows])
        for place, name in enumerate(("value", "low", "high"), list(frame.columns).index("measured") + 1):
            frame.insert(place, name, [getattr(row, name) for row in self.rows])
        return frame

    def write(self, folder: str | Path, *, command: str = "") -> list[Path]:
        """Write claims.csv (`numbers`) and claims.md (a page of `table`; see `words.page`).

        Args:
            folder: where; it is made if it is not there.
            command: the command that made it, for the page.

        Returns:
            The files.

        Raises:
            RunError: they cannot be written.
        """
        folder = Path(folder)
        csv, markdown = folder / "claims.csv", folder / "claims.md"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.numbers().to_csv(csv, index=False)
            markdown.write_text(self.markdown(command), encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{folder}: cannot be written: {error.strerror or error}; give another folder"
            ) from None
        return [csv, markdown]

    def markdown(self, command: str = "") -> str:
        """Write the page, made now by some command."""
        versions = {name: origin.version(name) for name in PACKAGES}
        made = {
            "Made by": f"`{command}`" if command else "jaxattn.claims.run",
            "Date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "Versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        }
        return words.page(self.rows, self.table(), made)


def run(
    *,
    seeds: int = 64,
    only: Sequence[str] = (),
    source: Source | None = None,
    plan: Plan = PLAN,
    text_plan: TextPlan = TEXT_PLAN,
    folder: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Scoreboard:
    """Run the studies of the claims, and judge what they measured.

    Args:
        seeds: number of seeds, 0 .. seeds - 1, chosen before the run; 36 or more can show that a yes/no
            claim holds.
        only: ids of the claims to measure, all by default; see `CLAIMS`.
        source: texts for the claims that need no Assumption 1, for example IMDB; None to leave them out.
        plan: the synthetic settings.
        text_plan: how much is run on texts.
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
            raise InputError(f"only: no claim {name!r}; give some of {', '.join(CLAIMS)}")
    wanted = tuple(only) or CLAIMS
    if source is not None and not set(wanted) & set(ON_TEXTS):
        raise InputError(f"source: no claim of {', '.join(wanted)} is measured on texts; leave the texts out")
    with ExitStack() as stack:
        reporter = reporter or stack.enter_context(Reporter(quiet=True))
        every, texts = studies.synthetic(plan, seeds), ""
        if source is not None:
            texts = _words(source, reporter)
            every |= studies.on_texts(source, text_plan, seeds)
        verdicts = [x for x in VERDICTS if x.claim in wanted and set(x.studies) <= set(every)]
        needed = {name: every[name] for x in verdicts for name in x.studies}
        folder = folder or stack.enter_context(tempfile.TemporaryDirectory())
        cells = _run(needed, Path(folder), reporter, texts)
    rows = [row for x in verdicts for row in x.judge(*(cells[name] for name in x.studies))]
    return Scoreboard(
        tuple(sorted(rows, key=lambda row: (not row.claim.promised, CLAIMS.index(row.claim.name))))
    )


def _run(
    needed: Mapping[str, Study], folder: Path, reporter: Reporter, texts: str
) -> dict[str, list[Measured]]:
    """Run the studies that are not done yet; read their cells back."""
    devices.use_all_cores()
    cells = {}
    for number, (name, study) in enumerate(needed.items(), start=1):
        reporter.note(f"{number} of {len(needed)}: {name}")
        outcome = execute(study, folder / name, command="jaxattn claims", reporter=reporter)
        if outcome.errors:
            raise RunError(f"{folder / name}: {outcome.errors[0]['reason']}")
        # The records are all that is judged, and trained embeddings of texts are large.
        shutil.rmtree(folder / name / "checkpoints", ignore_errors=True)
        read, words = load(folder / name), texts if study.base.data.shared else ""
        cells[name] = [Measured(read, cell.number, len(study.seeds), words) for cell in study.cells]
    return cells


def _words(source: Source, reporter: Reporter) -> str:
    """Name texts and their sizes."""
    corpus = source.load(reporter.loading).splits.train
    if corpus.num_classes != 2:
        raise InputError(f"source: {corpus.num_classes} classes; give texts with two labels")
    name = source.dataset if isinstance(source, Tfds) else "texts"
    return f"{name}, V = {corpus.vocab_size}, n = {corpus.num_examples}"
