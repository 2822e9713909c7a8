"""Section of a page for one item: the results of its finished runs, or the command to run it."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.api import Study
from jaxattn.lab.books.book import Item, RunScale
from jaxattn.lab.books.findings import Finding, measure_item
from jaxattn.lab.books.tables import Measure
from jaxattn.lab.books.tally import item_verdict, labelled_findings, tallies
from jaxattn.lab.results import figures, style
from jaxattn.lab.results.judge import HOLDS_FOR_SOME, MEASURED, VERDICTS, verdict_text
from jaxattn.lab.results.layout import shown_width, texts
from jaxattn.lab.results.load import load
from jaxattn.lab.results.run import Run
from jaxattn.lab.storage.files import inside

NOT_RUN = "not run"
# Key in `Section.facts` for the list of studies that were not run.
LEFT_OUT = "not run"
DOUBTFUL = {HOLDS_FOR_SOME, *(word for words in VERDICTS.values() for word in (words.outside, words.unknown))}
UNREADABLE = "not readable"


@dataclass(frozen=True)
class SectionPicture:
    """Figure in a section as a PNG image, with a file name and a caption."""

    file: str
    caption: str
    data: bytes

    @property
    def width(self) -> int:
        """Return the display width in CSS pixels."""
        return shown_width(self.data)

    def alt(self, item: Item) -> str:
        """Return the alt text for the figure."""
        return f"{item.heading}: {self.caption.partition('. ')[0].rstrip('.')}"


@dataclass(frozen=True)
class CriteriaDate:
    """Date on which the criteria of an item were fixed.

    Attributes:
        digest: hash of the criteria; see `Item.criteria_digest`.
        date: the day on which results were first recorded with these criteria, such as "2026-11-27".
        changed: True if results were recorded earlier with other criteria.
    """

    digest: str
    date: str
    changed: bool = False

    @property
    def text(self) -> str:
        """Format the date, and state whether the criteria were changed after results were recorded."""
        if self.changed:
            return f"changed on {self.date}, after results had been recorded"
        return f"unchanged since {self.date}"


@dataclass(frozen=True)
class Section:
    """Section of the page for one item.

    Attributes:
        item: the item.
        verdict: one-line verdict.
        command: command that runs the item.
        remedy: reason why the item was not run, with the command to run it; empty if it was run.
        facts: facts about the run, such as its peak memory, keyed by name.
        findings: measured numbers.
        tables: additional tables of strings, keyed by title.
        pictures: figures.
        seconds: run time.
        machine: description of the machine; empty if the item was not run.
        criteria: date on which the criteria were fixed; None if it was not recorded.
    """

    item: Item
    verdict: str
    command: str
    remedy: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    pictures: tuple[SectionPicture, ...] = ()
    seconds: float = 0.0
    machine: str = ""
    criteria: CriteriaDate | None = None

    @property
    def origin(self) -> dict[str, str]:
        """Return the authors of the item and the date on which its criteria were fixed, keyed by label."""
        date = self.criteria.text if self.criteria else "date not recorded"
        shown = self.ran and bool(self.item.criteria_digest)
        return {"written by": self.item.authors, **({"criteria": date} if shown else {})}

    @property
    def ran(self) -> bool:
        """Return True if the section has results to show."""
        return bool(self.machine)

    @property
    def unreadable(self) -> bool:
        """Return True if the item was run but its runs cannot be measured."""
        return self.verdict == UNREADABLE and not self.ran

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        """Return (text, colour) for each part of the verdict, one part per basis."""
        words = "only measured" if self.verdict == MEASURED else self.verdict
        return labelled_findings(tallies(self.findings)) or [(words, "")]

    @property
    def doubtful(self) -> bool:
        """Return True if any finding differs or is inconclusive."""
        return any(each.verdict in DOUBTFUL for each in self.findings if each.judged)

    @property
    def reason(self) -> str:
        """Return the reason given for findings that differ or are inconclusive, or "" if there is none."""
        return self.item.reason if self.doubtful else ""

    @property
    def agreement(self) -> dict[str, pd.DataFrame]:
        """Return tables of the findings, one per statement, with the item's display labels.

        Columns without entries are omitted.
        """
        mixed, label = any(finding.basis == "beyond" for finding in self.findings), self.item.label
        rows: dict[str, list[dict[str, str]]] = {}
        for finding in self.findings:
            promised = {"promised": "yes" if finding.basis == "promised" else "no"} if mixed else {}
            row = {
                "setting": label(finding.setting),
                "quantity": label(finding.name),
                "result": finding.text,
                "interval over": label(finding.counted),
                "published": finding.published,
                "criterion": finding.criterion.text if finding.criterion else "-",
                **promised,
                "verdict": verdict_text(finding.verdict),
                "certificate": label(finding.certificate),
            }
            rows.setdefault(label(finding.statement), []).append(row)
        return {statement: _without_empty(pd.DataFrame(own)) for statement, own in rows.items()}

    @property
    def labelled_tables(self) -> dict[str, pd.DataFrame]:
        """Return the additional tables, with the item's display labels."""
        label = self.item.label
        return {
            label(title): table.rename(columns=lambda name: label(str(name))).map(lambda x: label(str(x)))
            for title, table in self.tables.items()
        }


def _without_empty(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[:, [name for name in table if not table[name].isin(["", "-"]).all()]]


def item_command(item: Item, scale: RunScale) -> str:
    """Return the command line that runs an item."""
    words = ["jaxattn", "reproduce", item.book.name, "--only", item.name]
    words += ["--scale", scale] if scale != "laptop" else []
    words += ["--data-dir", "DIR"] if any(measure.needs for measure in item.measured) else []
    return shlex.join(words)


@dataclass(frozen=True)
class RunLocation:
    """Results folder for a book, and the settings for its runs.

    Attributes:
        out: the results folder; no files outside it are read.
        scale: the scale of the runs.
        overrides: additional overrides, keyed by study name.
    """

    out: Path
    scale: RunScale
    overrides: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def run(self, item: Item, study: str) -> Path:
        """Return the folder that contains the run of an item's study."""
        return self.out / "runs" / self.scale / item.source(study).run

    def study(self, item: Item, name: str) -> Study:
        """Read a study with the same scale and overrides as its run, but without the data folder."""
        return item.study(self.scale, name, overrides=self.overrides.get(name, ()))


def measured(item: Item, location: RunLocation) -> Section | None:
    """Measure the runs of an item and return its section, or None if no measure has all its runs.

    The study and the code of the measure are taken from the item. Nothing is imported from the results
    folder, because it may come from an untrusted source.
    """
    if item.absent:
        return None
    runs: dict[str, Run] = {}
    for name in dict.fromkeys(name for request in item.measured for name in request.studies):
        if (run := _finished(location.run(item, name), location.out)) is None:
            continue
        if not _matches(run, location.study(item, name)):
            return missing(
                item,
                location.scale,
                f"{location.run(item, name)} contains a run with other settings; run it again",
            )
        runs[name] = run
    there = [request for request in item.measured if all(name in runs for name in request.studies)]
    if not there:
        return None
    try:
        return _section(item, there, runs, location)
    # Reading untrusted tables can raise almost any exception.
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())
        return Section(
            item, UNREADABLE, item_command(item, location.scale), f"the run cannot be read: {reason}"
        )


def _matches(run: Run, study: Study) -> bool:
    ran = [(cell["settings"], cell.get("config_hash")) for cell in run.manifest["cells"]]
    return ran == [(cell.settings, cell.config_hash) for cell in study.cells]


def _section(item: Item, there: Sequence[Measure], runs: Mapping[str, Run], location: RunLocation) -> Section:
    findings: list[Finding] = []
    tables: dict[str, pd.DataFrame] = {}
    for request in there:
        found = measure_item([runs[name] for name in request.studies], request, item)
        findings += found.findings
        studies = ", ".join(request.studies)
        tables |= {(f"{x}, {studies}" if x in tables else x): table for x, table in found.tables.items()}
    used = [runs[name] for name in dict.fromkeys(name for request in there for name in request.studies)]
    left_out = [request for request in item.measured if request not in there]
    return Section(
        item,
        item_verdict(findings),
        item_command(item, location.scale),
        facts=_facts(used, item, location) | _missing_runs(left_out, item),
        findings=tuple(findings),
        tables={title: texts(table) for title, table in tables.items()},
        pictures=_pictures(used[0], item),
        seconds=sum(run.manifest["wall_time_s"] for run in used),
        machine=_machine(used[0]),
    )


def _missing_runs(measures: Sequence[Measure], item: Item) -> dict[str, str]:
    names = dict.fromkeys(name for request in measures for name in request.studies)
    needs = dict.fromkeys(item.book.shared.data[request.needs].what for request in measures if request.needs)
    return {LEFT_OUT: "; ".join([", ".join(names), *needs])} if names else {}


def missing(item: Item, scale: RunScale, why: str = "") -> Section:
    """Return a section that shows, instead of results, why there are none and which command to run."""
    if item.elsewhere:
        return Section(item, "shown elsewhere", item.elsewhere.command)
    remedy = f"run `{item_command(item, scale)}`"
    if item.data:
        remedy += f", with DIR/{item.data.below}: {item.data.what}"
    return Section(item, NOT_RUN, item_command(item, scale), f"{why}; {remedy}" if why else remedy)


def _finished(run: Path, out: Path) -> Run | None:
    try:
        loaded = load(inside(run, out))
    except InputError:
        return None
    return loaded if loaded.finished else None


def _machine(loaded: Run) -> str:
    device = loaded.manifest["device"]
    kind = "CPU cores" if device.get("platform") == "cpu" else device.get("kind", "devices")
    return f"{device.get('count', 1)} {kind}"


def _facts(runs: Sequence[Run], item: Item, location: RunLocation) -> dict[str, str]:
    names = dict.fromkeys(name for request in item.measured for name in request.studies)
    files = [_sweep_file(item, name) for name in names]
    manifests = [run.manifest for run in runs]
    memory = [known for each in manifests if (known := each.get("peak_memory_mib")) is not None]
    sizes = [f"{len(each['cells'])} × {len(each['seeds'])}" for each in manifests]
    study = location.study(item, next(iter(names)))
    facts = {
        f"sweep file{'s' if len(files) > 1 else ''}": ", ".join(files),
        "overrides": ", ".join(item.laptop) if location.scale == "laptop" and item.laptop else "none",
        "model": models(study),
        "cells × seeds": ", ".join(sizes),
        "run time": f"{sum(each['wall_time_s'] for each in manifests):.0f} s",
        **({"published run time": item.takes} if item.takes else {}),
        "peak memory": f"{max(memory) / 1024:.1f} GiB" if memory else "-",
    }
    return facts | _last_values(runs[0]) if len(runs) == 1 else facts


def _sweep_file(item: Item, name: str) -> str:
    source = item.source(name)
    folder = f"{item.folder.name}/" if source.own else ""
    return name if ":" in name else f"{item.book.location}/{folder}{name}.toml"


def _last_values(run: Run) -> dict[str, str]:
    facts = {}
    records = run.records[run.records["cell"] == run.manifest["cells"][0]["cell"]]
    with suppress(IndexError):
        last = records[records["phase"] == records["phase"].iloc[-1]]
        last = last[last["step"] == last["step"].max()].groupby("metric")["value"].mean()
        for metric in ("loss", "train_accuracy", "test_accuracy"):
            if metric in last:
                facts[f"{metric.replace('_', ' ')} (first cell)"] = f"{last[metric]:.3f}"
    return facts


def models(study: Study) -> str:
    """Return the kinds and widths of the models in a study."""
    tables = [cell.tables["model"] for cell in study.cells]
    kinds, dims = (dict.fromkeys(str(x[key]) for x in tables if key in x) for key in ("kind", "dim"))
    return ", d = ".join(", ".join(names) for names in (kinds, dims) if names)


def _pictures(loaded: Run, item: Item) -> tuple[SectionPicture, ...]:
    pictures = []
    for number, spec in enumerate(item.figures):
        drawn = figures.draw_figure(loaded, spec)
        name = f"figures/{item.folder.name}{f'-{number + 1}' if number else ''}.png"
        pictures.append(SectionPicture(name, drawn.caption, style.png(drawn.figure)))
    return tuple(pictures)
