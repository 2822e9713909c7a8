"""The scoreboard of the theory: every claim of the paper, measured, with intervals and certificates.

Studies are the sweep files in claims/; `VERDICTS` says which of them measure a claim, and what judges them.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from jaxattn.api import Study
from jaxattn.core.errors import InputError, RunError
from jaxattn.engine import devices
from jaxattn.engine.manifest import PACKAGES
from jaxattn.engine.progress import Reporter
from jaxattn.engine.run import run as execute
from jaxattn.reproduction import judges
from jaxattn.reproduction.cell import Cell
from jaxattn.reproduction.rows import DECIDING_SEEDS, REQUIRED, Row
from jaxattn.results import layout
from jaxattn.results.intervals import LEVEL
from jaxattn.results.layout import markdown
from jaxattn.results.load import load
from jaxattn.storage import provenance
from jaxattn.study.seed import dataset

TEMPLATE = Path(__file__).with_name("claims.html")
STUDIES = Path(__file__).with_name("claims")
# By claim, in the order of the paper.
STATEMENTS: Mapping[str, str] = MappingProxyType(
    {
        "L4.1": "After one gradient step on the embeddings, a token's value E·v has moved by η0/2 times α, "
        "which says how much more often it occurs under one label than under the other, up to an error of "
        "order 1/√d.",
        "MC": "The same for more than two classes: each class's value moves by that class's α.",
        "L4.2": "When p is trained by gradient flow, its norm grows without bound, like the logarithm of "
        "time: attention becomes hard, and p comes to rest nowhere.",
        "T4.3": "The direction of p tends to the max-margin direction of the tokens that it selects: of all "
        "directions the one that lifts their scores furthest above those of all others.",
        "L4.4/4.5": "After a large enough step on the embeddings, and long enough training of p, every "
        "sequence attends to its important token alone.",
        "V": "If the head v is trained together with p, the same tokens are selected, but p tends to the "
        "direction of a relaxed problem, in which some sequences no longer count.",
        "MR": "With several relevant tokens in a sequence, at least one of them is selected.",
    }
)
PARTS = ((True, "What the theory promises"), (False, "Where the theory promises nothing"))
CLAIMS = tuple(STATEMENTS)
NO_OVERRIDES: Mapping[str, Sequence[str]] = MappingProxyType({})


class Verdict(NamedTuple):
    """How a claim is judged.

    Attributes:
        claim: the claim.
        studies: the studies whose cells the judge is given; their sweep files are claims/NAME.toml.
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


ON_TEXTS = ("law-texts", "flow-texts")


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
        return int(any(row.verdict == "fails" for row in self.rows))

    def table(self) -> pd.DataFrame:
        """Lay out for reading: claim, setting, seeds, measured, value, tolerance, verdict, certificate."""
        return pd.DataFrame(
            {
                "claim": row.claim.name,
                "setting": row.claim.setting,
                "seeds": row.counted,
                "measured": row.measured,
                "value": row.text,
                "tolerance": row.criterion.text if row.criterion else "-",
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
        frame["seeds"] = [row.estimate.seeds for row in self.rows]
        frame.insert(3, "missing", [row.estimate.missing for row in self.rows])
        frame.insert(4, "why", [row.why for row in self.rows])
        frame.insert(1, "statement", [row.claim.statement for row in self.rows])
        frame.insert(3, "promised", [row.claim.promised for row in self.rows])
        for place, name in enumerate(("value", "low", "high"), list(frame.columns).index("measured") + 1):
            frame.insert(place, name, [getattr(row.estimate, name) for row in self.rows])
        return frame

    def write(self, folder: str | Path, *, command: str = "") -> list[Path]:
        """Write claims.csv (`numbers`) and claims.md (a page of `table`; see `page`).

        Args:
            folder: where claims.csv, claims.md and claims.html go; made if it is not there.
            command: the command that made it, for the page.

        Returns:
            The files.

        Raises:
            RunError: they cannot be written.
        """
        folder = Path(folder)
        csv, markdown, html = (folder / f"claims.{suffix}" for suffix in ("csv", "md", "html"))
        made = made_now(command)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.numbers().to_csv(csv, index=False)
            markdown.write_text(page(self.rows, self.table(), made), encoding="utf-8")
            table = self.table().assign(promised=[row.claim.promised for row in self.rows])
            html.write_text(as_html(table, made, chances(self.rows)), encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{folder}: cannot be written: {error.strerror or error}; give another folder"
            ) from None
        return [csv, markdown, html]


def made_now(command: str = "") -> dict[str, str]:
    """Say how a page is made that is made now by some command: command, date, versions."""
    versions = {name: provenance.version(name) for name in PACKAGES}
    return {
        "Made by": f"`{command or 'jaxattn claims'}`",
        "Date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }


def as_html(table: pd.DataFrame, made: Mapping[str, str], chances: str) -> str:
    """Write the scoreboard as a page of HTML that holds everything it shows.

    Args:
        table: the rows laid out for reading, with the column `promised`.
        made: how the page was made: command, date, versions.
        chances: what is expected by chance.

    Returns:
        HTML: the verdict, contents, the rows of each claim, how to read them.
    """
    promised = table[table["promised"]]
    counts = promised["verdict"].value_counts()
    words = {"holds": "hold", "fails": "fail", "undecided": "are undecided"}
    said = ", ".join(f"{counts[word]} {plural}" for word, plural in words.items() if word in counts)
    parts = {
        title: [
            (claim, STATEMENTS[claim], rows.drop(columns=["claim", "promised"]))
            for claim, rows in table[table["promised"] == flag].groupby("claim", sort=False)
        ]
        for flag, title in PARTS
    }
    return layout.fill(
        TEMPLATE,
        verdict=f"Of {len(promised)} promised rows {said or 'none yet'}.",
        chances=chances,
        made=made,
        parts={title: rows for title, rows in parts.items() if rows},
        reading=READING,
    )


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
            claim holds. On texts no more than their sweep files have.
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
            raise InputError(f"only: no claim {name!r}; give some of {', '.join(CLAIMS)}")
    wanted = [verdict for verdict in VERDICTS if verdict.claim in (only or CLAIMS)]
    if data_dir is None:
        wanted = [verdict for verdict in wanted if not set(verdict.studies) & set(ON_TEXTS)]
    elif not any(set(verdict.studies) & set(ON_TEXTS) for verdict in wanted):
        raise InputError(f"data_dir: no claim of {', '.join(only)} is measured on texts; leave it out")
    names = dict.fromkeys(name for verdict in wanted for name in verdict.studies)
    studies = {name: _study(name, seeds, data_dir, overrides.get(name, ())) for name in names}
    with ExitStack() as stack:
        reporter = reporter or stack.enter_context(Reporter(quiet=True))
        folder = folder or stack.enter_context(tempfile.TemporaryDirectory())
        cells = _run(studies, Path(folder), reporter)
    rows = [row for verdict in wanted for row in verdict.judge(*(cells[name] for name in verdict.studies))]
    return Scoreboard(
        tuple(sorted(rows, key=lambda row: (not row.claim.promised, CLAIMS.index(row.claim.name))))
    )


def _study(name: str, seeds: int, data_dir: Path | None, overrides: Sequence[str]) -> Study:
    path, changes = STUDIES / f"{name}.toml", list(overrides)
    if name in ON_TEXTS:
        changes = [f"data.data_dir={data_dir}", *changes]
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


def too_few(seeds: int) -> str:
    """Say that so few seeds decide no yes/no row, or nothing."""
    if seeds >= DECIDING_SEEDS:
        return ""
    return (
        f"{seeds} seeds are too few for yes/no rows to hold: the whole interval of the share has to lie "
        f"above {REQUIRED:g}, which takes {DECIDING_SEEDS} seeds or more; with {seeds} they can only fail"
    )


def chances(rows: Sequence[Row]) -> str:
    """Say how many rows are judged, and how many of their intervals miss the truth by chance."""
    judged = [row for row in rows if row.criterion]
    promised, missed = sum(row.claim.promised for row in judged), (1 - LEVEL) * len(judged)
    return (
        f"{len(rows)} rows, {len(judged)} of them judged against a tolerance ({promised} promised). At 95 % "
        f"up to {missed:.1f} of the {len(judged)} intervals are expected to miss their number by chance "
        "alone; rows of the same runs miss together."
    )


def page(rows: Sequence[Row], table: pd.DataFrame, made: Mapping[str, str]) -> str:
    """Write the scoreboard as a page of Markdown.

    Args:
        rows: the rows.
        table: the same, laid out for reading.
        made: how the page was made: command, date, versions.

    Returns:
        The page: title, how it was made, what the claims say, the tables, how to read them.
    """
    own = {row.claim.name for row in rows}
    seeds = max((row.estimate.seeds + row.estimate.missing for row in rows), default=0)
    few = too_few(seeds)
    parts = [
        "# The claims of the theory, measured",
        "Statements of arXiv 2505.17282 and of its public review thread, measured on exact flows and single "
        "steps in float64 with many seeds, and judged by one rule.",
        "\n".join(f"- {name}: {text}" for name, text in made.items()),
        chances(rows) + (f" {few[0].upper()}{few[1:]}." if few else ""),
        "## What the claims say",
        "\n".join(f"- **{name}**: {text}" for name, text in STATEMENTS.items() if name in own),
    ]
    for promised, title in PARTS:
        part = table[[row.claim.promised == promised for row in rows]]
        if len(part):
            parts += [f"## {title}", markdown(part)]
    return "\n\n".join([*parts, "## How to read this", READING]) + "\n"


READING = """\
Every number has a 95 % interval over seeds: Student's for a mean, that of Clopper and Pearson for a share of
seeds. It has none where all seeds give the same number, which is then held against the tolerance itself, from
six seeds on. Where the theory says what the number should be it has a tolerance. The verdict is read off
these two, by one rule for every row:

    promised by the theory   not promised       when
    holds                    holds there too    the whole interval lies within the tolerance
    fails                    does not hold      none of it does
    undecided                undecided          it straddles, or there is no interval

Two cases are named apart. "holds for some": not promised, the share of seeds is below the tolerance and not
zero. A row without a tolerance is "undecided" if it is promised (a limit that no finite run reaches) and
"measured" if not. Every row is over the seeds that have a value; how many have none, and why, stands beside
their number.

The number of seeds is to be chosen before the run. Whoever adds seeds until a row holds, and stops there,
will see any row hold in the end.

A yes/no claim is a share of seeds and has to hold with high probability: its tolerance is a share of at
least 0.9. All of n seeds reach that from n = 36 on; with fewer seeds such a claim can fail but not hold.

Settings: V tokens in the vocabulary, n sequences of T tokens, embeddings of dimension d; η0 is the size of
the one step on the embeddings before p is trained. In corpora of kind assumption1 every sequence has exactly
one relevant token; those of kind independent draw tokens one by one. A certificate is a proof by numbers: a
duality gap that bounds how far the computed max-margin direction is from the true one, and a primal
residual."""
