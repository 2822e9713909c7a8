"""The page: every item with its figure, our numbers beside the published ones, and its verdict."""

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from jaxattn.errors import InputError, RunError
from jaxattn.paper import compare
from jaxattn.paper.compare import Finding
from jaxattn.paper.item import DATA, Item
from jaxattn.paper.items import ITEMS
from jaxattn.results import figures, style
from jaxattn.results.load import load
from jaxattn.results.numbers import format_number
from jaxattn.results.page import fill
from jaxattn.results.run import Run
from jaxattn.results.tables import markdown

TEMPLATE = Path(__file__).with_name("page.html")
# A page of twenty figures stays small.
PIXELS_PER_INCH = 110
NOT_RUN = "not run"
AGREEMENT = (
    "item", "measured", "value", "low", "high", "interval_over", "published", "criterion", "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A figure as PNG, with its file name and its caption."""

    file: str
    caption: str
    data: bytes


@dataclass(frozen=True)
class Section:
    """What the page says of one item.

    Attributes:
        item: the item.
        verdict: one line.
        command: what runs it.
        remedy: why it was not run and what to do; "" if it was.
        facts: what was run, by name.
        findings: measured numbers.
        tables: further tables by title.
        pictures: figures.
        seconds: how long it ran.
        machine: what it ran on; "" if it was not.
    """

    item: Item
    verdict: str
    command: str
    remedy: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    seconds: float = 0.0
    machine: str = ""

    @property
    def reason(self) -> str:
        """Why what does not agree does not; "" if all does, or nothing was found out."""
        doubtful = any(each.verdict in (compare.DIFFERS, compare.CANNOT_TELL) for each in self.findings)
        return self.item.reason if doubtful else ""

    @property
    def agreement(self) -> pd.DataFrame:
        """The findings for reading."""
        return pd.DataFrame(
            {
                "measured": finding.measured,
                "ours": finding.text,
                "interval over": finding.over,
                "published": finding.published,
                "criterion": finding.criterion.text if finding.criterion else "-",
                "verdict": finding.verdict,
            }
            for finding in self.findings
        )


@dataclass(frozen=True)
class Page:
    """What was written.

    Attributes:
        sections: one for every item.
        paths: all files, the page first.
        failed: items whose run failed, and why.
    """

    sections: tuple[Section, ...]
    paths: tuple[Path, ...]
    failed: Mapping[str, str]

    @property
    def summary(self) -> pd.DataFrame:
        """One row per item."""
        return summary(self.sections)


def write(
    out: Path, runs: Mapping[str, Path], *, scale: str, failed: Mapping[str, str] = MappingProxyType({})
) -> Page:
    """Write index.md, index.html, agreement.csv and figures/*.png.

    Args:
        out: where.
        runs: the run folder of every item by name.
        scale: the scale of the runs.
        failed: items whose run failed, and why.

    Returns:
        What was written.

    Raises:
        InputError: a run that was damaged.
        RunError: a file cannot be written.
    """
    sections = tuple(section(item, runs[item.name], scale, item.name in failed) for item in ITEMS)
    files = {
        "index.md": as_markdown(sections, scale).encode(),
        "index.html": as_html(sections, scale).encode(),
        "agreement.csv": agreement(sections).to_csv(index=False, lineterminator="\n").encode(),
    }
    files |= {picture.file: picture.data for each in sections for picture in each.pictures}
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            partial = out / f"{name}.partial"
            partial.write_bytes(content)
            os.replace(partial, out / name)
    except OSError as error:
        raise RunError(
            f"{out}: cannot be written: {error.strerror or error}; give another folder with --out"
        ) from None
    return Page(sections, tuple(out / name for name in files), failed)


def section(item: Item, run: Path, scale: str, failed: bool = False) -> Section:
    """Measure a finished run; say what to do about one that is not there."""
    words = ["jaxattn", "reproduce", "--only", item.name]
    words += ["--scale", scale] if scale != "laptop" else []
    words += ["--data-dir", "DIR"] if item.needs != "nothing" else []
    command = shlex.join(words)
    if item.measure is None:
        return Section(item, "shown elsewhere", item.elsewhere.command if item.elsewhere else command)
    loaded = _finished(run)
    if loaded is None:
        remedy = f"run `{command}`"
        if item.needs != "nothing":
            place = DATA[item.needs]
            remedy += f", with DIR/{place.below}: {place.what}"
        return Section(item, NOT_RUN, command, ("the run failed; " if failed else "") + remedy)
    try:
        measured = item.measure(loaded)
        pictures = _pictures(loaded, item)
    except InputError as error:
        return Section(item, compare.CANNOT_TELL, command, f"the run cannot be read: {error}")
    findings = tuple(measured.findings)
    return Section(
        item,
        compare.verdict(findings),
        command,
        facts=_facts(loaded, item, scale),
        findings=findings,
        tables=measured.tables,
        pictures=pictures,
        seconds=loaded.manifest["wall_time_s"],
        machine=_machine(loaded),
    )


def _finished(run: Path) -> Run | None:
    try:
        loaded = load(run)
    except InputError:
        return None
    return loaded if loaded.finished else None


def summary(sections: tuple[Section, ...]) -> pd.DataFrame:
    """One row per item: what is reported, the verdict, how long it ran and how to run it."""
    return pd.DataFrame(
        {
            "item": each.item.name,
            "reported": each.item.reports,
            "verdict": each.verdict,
            "run time": each.facts.get("run time", "-"),
            "most memory": each.facts.get("most memory", "-"),
            "command": f"`{each.command}`",
        }
        for each in sections
    )


def agreement(sections: tuple[Section, ...]) -> pd.DataFrame:
    """Every finding of every item with its numbers, for computing."""
    rows = [
        {
            "item": each.item.name,
            "measured": finding.measured,
            "value": finding.estimate.value,
            "low": finding.estimate.low,
            "high": finding.estimate.high,
            "interval_over": finding.over,
            "published": finding.published,
            "criterion": finding.criterion.text if finding.criterion else "-",
            "verdict": finding.verdict,
        }
        for each in sections
        for finding in each.findings
    ]
    return pd.DataFrame(rows, columns=list(AGREEMENT))


def as_markdown(sections: tuple[Section, ...], scale: str) -> str:
    """Write the page in Markdown."""
    introduction = [line for text in _introduction(sections, scale) for line in (text, "")]
    lines = ["# The paper, run again", "", *introduction, markdown(summary(sections)), ""]
    for each in sections:
        item = each.item
        lines += [f"## {item.name}", "", f"**Reported:** {item.reports}", ""]
        lines += [f"**Not published and chosen here:** {item.chosen}.", ""]
        lines += [f"**Compared:** {item.compared}.", "", f"**Verdict:** {each.verdict}.", ""]
        lines += [f"**Why:** {each.reason}.", ""] if each.reason else []
        if item.elsewhere:
            lines += [f"Not run here: see [{item.elsewhere.words}]({item.elsewhere.link}).", ""]
        if each.remedy:
            lines += [f"{each.verdict.capitalize()}: {each.remedy}.", ""]
        lines += [*(f"- {name}: {fact}" for name, fact in each.facts.items()), ""]
        lines += [markdown(each.agreement), ""] if each.findings else []
        for picture in each.pictures:
            lines += [f"![{item.name}]({picture.file})", "", picture.caption, ""]
        for title, table in each.tables.items():
            lines += [f"{title}:", "", markdown(table), ""]
        lines += [f"    {each.command}", ""]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def as_html(sections: tuple[Section, ...], scale: str) -> str:
    """Write the page as HTML that holds everything it shows."""
    return fill(
        TEMPLATE,
        sections=sections,
        introduction=_introduction(sections, scale),
        summary=summary(sections).drop(columns="command"),
        cells=_cells,
    )


def _introduction(sections: tuple[Section, ...], scale: str) -> list[str]:
    sizes = (
        "This page is at laptop scale: sizes are reduced by the overrides that every item names; "
        "`--scale full` runs the sweep files of jaxattn/paper/sweeps as they are."
        if scale == "laptop"
        else "This page is at full scale: the sweep files of jaxattn/paper/sweeps as they are."
    )
    return [
        "Every figure, table and number that the paper and its review thread report, run again, with our "
        "result beside the published one.",
        sizes,
        *([_cost(ran, scale)] if (ran := [each for each in sections if each.machine]) else []),
        compare.RULE,
    ]


def _cost(ran: list[Section], scale: str) -> str:
    minutes = sum(each.seconds for each in ran) / 60
    machines = " and ".join(sorted({each.machine for each in ran}))
    words = f"`jaxattn reproduce{f' --scale {scale}' if scale != 'laptop' else ''} --data-dir DIR`"
    took = f"The {len(ran)} runs shown took" if len(ran) > 1 else "The run shown took"
    return f"{took} {minutes:,.0f} minutes in all on {machines}: {words}."


def _machine(loaded: Run) -> str:
    device = loaded.manifest["device"]
    kind = "CPU cores" if device["platform"] == "cpu" else device["kind"]
    return f"{device['count']} {kind}"


def _facts(loaded: Run, item: Item, scale: str) -> dict[str, str]:
    config = loaded.manifest["config"]
    seeds = loaded.manifest["seeds"]
    memory = loaded.manifest.get("peak_memory_mib")
    facts = {
        "sweep file": f"jaxattn/paper/sweeps/{item.name}.toml",
        "overrides": ", ".join(item.laptop) if scale == "laptop" and item.laptop else "none",
        "model": f"{config['model']['kind']}, d = {config['model']['dim']}",
        "cells × seeds": f"{len(loaded.manifest['cells'])} × {len(seeds)}",
        "run time": f"{loaded.manifest['wall_time_s']:.0f} s",
        "most memory": "-" if memory is None else f"{memory / 1024:.1f} GiB",
    }
    records = loaded.records[loaded.records["cell"] == loaded.manifest["cells"][0]["cell"]]
    with suppress(IndexError):
        last = records[records["phase"] == records["phase"].iloc[-1]]
        last = last[last["step"] == last["step"].max()].groupby("metric")["value"].mean()
        for metric in ("loss", "train_accuracy", "test_accuracy"):
            if metric in last:
                facts[f"{metric.replace('_', ' ')} (first cell)"] = f"{last[metric]:.3f}"
    return facts


def _pictures(loaded: Run, item: Item) -> tuple[Picture, ...]:
    pictures = []
    for number, spec in enumerate(item.figures):
        drawn = figures.draw(loaded, spec)
        name = f"figures/{item.name}{f'-{number + 1}' if number else ''}.png"
        pictures.append(Picture(name, drawn.caption, style.png(drawn.figure, PIXELS_PER_INCH)))
    return tuple(pictures)


def _cells(table: pd.DataFrame) -> list[list[str]]:
    return [
        [format_number(x) if isinstance(x, float) else str(x) for x in row]
        for row in table.itertuples(index=False)
    ]
