"""The rows of the scoreboard together: its parts, its files and its pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from jaxattn.core.errors import writing
from jaxattn.lab.books.rows import DECIDING_SEEDS, REQUIRED, Row
from jaxattn.lab.engine.manifest import PACKAGES
from jaxattn.lab.results import layout
from jaxattn.lab.results.intervals import LEVEL
from jaxattn.lab.results.layout import markdown
from jaxattn.lab.storage import provenance

TEMPLATE = Path(__file__).with_name("claims.html")
TITLE = "The claims of the theory, measured"
ABOUT = (
    "Statements of arXiv 2505.17282, of its public review thread and of this project, measured on exact "
    "flows and single steps in float64 with many seeds, and judged by one rule."
)
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
        "label": "Between two edges of η0, which `label_window` derives, the flow of p loses the tokens of "
        "one label; outside of them it loses none. Refuted by an η0 well inside at which seeds keep both, or "
        "well outside at which they lose one; or by an edge that is off by more than a fifth.",
        "cover": "Trained together, E, p and v end on a cover: tokens on top under one label each, whose "
        "values E·v are all y ‖v‖²/√r. From small starts scores are in the order of α or of -α, as the sign "
        "of S says, the mean of y times the variance of α within a sequence. Refuted by a top token of both "
        "labels, or a distance that stays; by small starts that lead to another order or the other label.",
        "mixture": "Where sequences hold several relevant tokens, p tends to the shortest vector that meets "
        "requirements on pairs of tokens, which `certify_joint_limit` certifies. Refuted by a certified seed "
        "whose far flow, which knows no requirements, comes to another direction.",
    }
)
CLAIMS = tuple(STATEMENTS)
PLURALS = {"holds": "hold", "fails": "fail", "undecided": "are undecided"}
FOUND = ("label", "cover", "mixture")
PARTS = ("What the theory promises", "Where the theory promises nothing", "What this project found beyond it")


@dataclass(frozen=True)
class Scoreboard:
    """The rows: those that the paper's theory promises, those where it promises nothing, those of findings.

    Attributes:
        rows: the rows.
    """

    rows: tuple[Row, ...]

    @property
    def parts(self) -> dict[str, pd.DataFrame]:
        """`table` by the titles of its parts, without those that have no row."""
        table, own = self.table(), [part_of(row) for row in self.rows]
        return {title: table[[each == title for each in own]] for title in PARTS if title in own}

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
        with writing(folder, "give another folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self.numbers().to_csv(csv, index=False)
            markdown.write_text(page(self, made), encoding="utf-8")
            html.write_text(as_html(self, made), encoding="utf-8")
        return [csv, markdown, html]


def made_now(command: str = "") -> dict[str, str]:
    """Say how a page is made that is made now by some command: command, date, versions."""
    versions = {name: provenance.version(name) for name in PACKAGES}
    return {
        "Made by": f"`{command or 'jaxattn claims'}`",
        "Date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }


def part_of(row: Row) -> str:
    """Tell in which of `PARTS` a row stands."""
    return PARTS[2] if row.claim.name in FOUND else PARTS[not row.claim.promised]


def order(row: Row) -> tuple[int, int]:
    """Tell where a row stands: part by part, in each by claims."""
    return PARTS.index(part_of(row)), CLAIMS.index(row.claim.name)


def as_html(board: Scoreboard, made: Mapping[str, str]) -> str:
    """Write the scoreboard as a page of HTML that holds everything it shows.

    Args:
        board: the rows.
        made: how the page was made: command, date, versions.

    Returns:
        HTML: the verdict, contents, the rows of each claim, how to read them.
    """
    parts = {
        title: [(claim, STATEMENTS[claim], rows.drop(columns="claim")) for claim, rows in part]
        for title, table in board.parts.items()
        for part in [table.groupby("claim", sort=False)]
    }
    said = []
    for title, words in ((PARTS[0], "promised"), (PARTS[2], "found")):
        own = [row.verdict for row in board.rows if part_of(row) == title]
        counts = [f"{own.count(word)} {plural}" for word, plural in PLURALS.items() if word in own]
        counts += [f"{left} without a criterion"] if (left := sum(x not in PLURALS for x in own)) else []
        said += [f"Of {len(own)} {words} rows {', '.join(counts)}."] if own else []
    return layout.fill(
        TEMPLATE,
        title=TITLE,
        about=ABOUT,
        verdict=" ".join(said),
        chances=chances(board.rows),
        made=made,
        parts=parts,
        reading=READING,
    )


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
    every = [part_of(row) for row in rows]
    judged = [part_of(row) for row in rows if row.criterion]
    promised, found = (f"{judged.count(part)} of the {every.count(part)}" for part in (PARTS[0], PARTS[2]))
    missed = (1 - LEVEL) * len(judged)
    return (
        f"{len(rows)} rows, {len(judged)} of them judged against a tolerance ({promised} promised by the "
        f"theory, {found} found). At 95 % up to {missed:.1f} of the {len(judged)} intervals are expected to "
        "miss their number by chance alone; rows of the same runs miss together."
    )


def page(board: Scoreboard, made: Mapping[str, str]) -> str:
    """Write the scoreboard as a page of Markdown.

    Args:
        board: the rows.
        made: how the page was made: command, date, versions.

    Returns:
        The page: title, how it was made, what the claims say, the tables, how to read them.
    """
    own = {row.claim.name for row in board.rows}
    seeds = max((row.estimate.seeds + row.estimate.missing for row in board.rows), default=0)
    few = too_few(seeds)
    parts = [
        f"# {TITLE}",
        ABOUT,
        "\n".join(f"- {name}: {text}" for name, text in made.items()),
        chances(board.rows) + (f" {few[0].upper()}{few[1:]}." if few else ""),
        "## What the claims say",
        "\n".join(f"- **{name}**: {text}" for name, text in STATEMENTS.items() if name in own),
    ]
    for title, part in board.parts.items():
        parts += [f"## {title}", markdown(part)]
    return "\n\n".join([*parts, "## How to read this", READING]) + "\n"


READING = """\
Every number has a 95 % interval over seeds: Student's for a mean, that of Clopper and Pearson for a share of
seeds. It has none where all seeds give the same number, which is then held against the tolerance itself, from
six seeds on. Where the theory says what the number should be it has a tolerance. The verdict is read off
these two, by one rule for every row:

    promised, or found       not promised       when
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
Beside an edge of the window of η0, which is that of the median seed, half of the seeds have to.

Settings: V tokens in the vocabulary, n sequences of T tokens, embeddings of dimension d; η0 is the size of
the one step on the embeddings before p is trained. In corpora of kind assumption1 every sequence has exactly
one relevant token, in those of kind equal_counts all of these equally often; those of kind independent draw
tokens one by one. A certificate is a proof by numbers: a duality gap that bounds how far the computed
max-margin direction is from the true one, and a primal residual."""
