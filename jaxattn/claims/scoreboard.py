"""The scoreboard of the theory: every claim of the paper, measured, with intervals and certificates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from jaxattn.claims import joint, limits, one_step, reviews
from jaxattn.claims.flow import Flows
from jaxattn.claims.reviews import TextPlan
from jaxattn.claims.rows import FAILS, Row
from jaxattn.claims.rows import __doc__ as meaning
from jaxattn.claims.settings import Plan
from jaxattn.data import text
from jaxattn.data.readers import Source
from jaxattn.data.text import Progress, silent
from jaxattn.errors import InputError, RunError
from jaxattn.results.tables import markdown

CLAIMS = ("L4.1", "MC", "L4.2", "T4.3", "L4.4/4.5", "V", "MR")
ON_TEXTS = ("L4.1", "L4.2")
PLAN, TEXT_PLAN = Plan(), TextPlan()


class Part(NamedTuple):
    """Rows that are measured together.

    Attributes:
        description: what is being done.
        claims: the claims its rows are about.
        rows: measures them.
    """

    description: str
    claims: tuple[str, ...]
    rows: Callable[[], list[Row]]


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
                "seeds": row.seeds,
                "measured": row.measured,
                "value": row.text,
                "tolerance": row.tolerance.text if row.tolerance else "-",
                "verdict": row.verdict,
                "certificate": row.certificate,
            }
            for row in self.rows
        )

    def numbers(self) -> pd.DataFrame:
        """Lay out for computing: `table` with statement and promised, and value, low and high as numbers."""
        frame = self.table().drop(columns="value")
        frame.insert(1, "statement", [row.claim.statement for row in self.rows])
        frame.insert(3, "promised", [row.claim.promised for row in self.rows])
        for place, name in enumerate(("value", "low", "high"), list(frame.columns).index("measured") + 1):
            frame.insert(place, name, [getattr(row, name) for row in self.rows])
        return frame

    def write(self, folder: str | Path) -> list[Path]:
        """Write claims.csv (`numbers`) and claims.md (`table`, what is promised and what is not apart).

        Args:
            folder: where; it is made if it is not there.

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
            markdown.write_text(self.markdown(), encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{folder}: cannot be written: {error.strerror or error}; give another folder"
            ) from None
        return [csv, markdown]

    def markdown(self) -> str:
        """Write both tables in Markdown."""
        table = self.table()
        promised = [row.claim.promised for row in self.rows]
        parts = [
            ("What the theory promises", table[promised]),
            ("Where the theory promises nothing", table[[not x for x in promised]]),
        ]
        texts = [f"## {title}\n\n{markdown(part)}" for title, part in parts if len(part)]
        return "\n\n".join([*texts, f"## How to read this\n\n{(meaning or '').strip()}"]) + "\n"


def run(
    *,
    seeds: int = 64,
    only: Sequence[str] = (),
    source: Source | None = None,
    plan: Plan = PLAN,
    text_plan: TextPlan = TEXT_PLAN,
    progress: Progress = silent,
) -> Scoreboard:
    """Measure the claims.

    Args:
        seeds: number of seeds, 0 .. seeds - 1; 36 or more can show that a yes/no claim holds.
        only: ids of the claims to measure, all by default; see `CLAIMS`.
        source: texts for the claims that need no Assumption 1, for example IMDB; None to leave them out.
        plan: the synthetic settings.
        text_plan: how much is run on texts.
        progress: called with (description, done, total) before every part and once at the end, and while
            texts are read.

    Returns:
        The scoreboard.

    Raises:
        InputError: fewer than two seeds, an unknown claim, texts that cannot be read or have more classes
            than two, texts without a claim to measure on them.
    """
    if seeds < 2:
        raise InputError(f"seeds: {seeds}; an interval over seeds needs at least 2")
    for name in only:
        if name not in CLAIMS:
            raise InputError(f"only: no claim {name!r}; give some of {', '.join(CLAIMS)}")
    wanted = tuple(only) or CLAIMS
    if source is not None and not set(wanted) & set(ON_TEXTS):
        raise InputError(f"source: no claim of {', '.join(wanted)} is measured on texts; leave the texts out")
    parts = _synthetic(plan, Flows(range(seeds), plan.until_norm))
    if source is not None:
        parts += _on_texts(source, range(seeds), text_plan, progress)
    parts = [part for part in parts if set(part.claims) & set(wanted)]
    rows: list[Row] = []
    for done, part in enumerate(parts):
        progress(part.description, done, len(parts))
        rows += [row for row in part.rows() if row.claim.name in wanted]
    progress("claims", len(parts), len(parts))
    return Scoreboard(tuple(sorted(rows, key=_place)))


def _place(row: Row) -> tuple[bool, int]:
    return not row.claim.promised, CLAIMS.index(row.claim.name)


def _synthetic(plan: Plan, flows: Flows) -> list[Part]:
    base, law, seeds = plan.base, plan.law, flows.seeds
    # Data without Assumption 1, in the same sizes: both share their compiled programs.
    independent = replace(base, kind="independent")
    under_a1 = replace(law, kind="assumption1")
    classes = replace(law, num_classes=plan.law_classes)
    parts = [
        Part("one step, independent tokens", ("L4.1",), partial(one_step.rows, law, seeds, plan.law_dims)),
        Part("one step, Assumption 1", ("L4.1",), partial(one_step.rows, under_a1, seeds, plan.law_dims)),
        Part("one step, several classes", ("MC",), partial(one_step.rows, classes, seeds, plan.law_dims)),
        Part("flow, Assumption 1", ("L4.2",), partial(limits.unbounded, flows, base)),
        Part("flow, independent tokens", ("L4.2",), partial(limits.unbounded, flows, independent)),
        Part("direction of the limit", ("T4.3",), partial(limits.converges, flows, base)),
        Part("selection", ("L4.4/4.5",), partial(limits.selects, flows, base)),
        Part("head trained as well", ("V",), partial(joint.rows, flows, base, plan.joint_steps)),
    ]
    for r in plan.several:
        setting = replace(base, kind="multi_relevant", relevant_per_sequence=r)
        parts.append(Part(f"{r} relevant tokens", ("MR",), partial(limits.several, flows, setting)))
    beyond = [replace(base, step_size=step_size) for step_size in plan.step_sizes]
    beyond += [*(replace(base, dim=dim) for dim in plan.dims), independent]
    for setting in beyond:
        description = f"beyond: {setting.kind}, d = {setting.dim}, η0 = {setting.step_size:g}"
        parts.append(Part(description, ("L4.4/4.5", "T4.3"), partial(limits.elsewhere, flows, setting)))
    return parts


def _on_texts(source: Source, seeds: Sequence[int], plan: TextPlan, progress: Progress) -> list[Part]:
    corpus = text.load(source, progress=progress).train
    if corpus.num_classes != 2:
        raise InputError(f"source: {corpus.num_classes} classes; give texts with two labels")
    name = getattr(source, "dataset", "texts")
    return [
        Part(f"one step, {name}", ("L4.1",), partial(reviews.one_step_rows, corpus, name, seeds, plan)),
        Part(f"descent, {name}", ("L4.2",), partial(reviews.flow_rows, corpus, name, seeds, plan)),
    ]
