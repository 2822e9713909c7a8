"""A section of the page: what a finished run of an item shows, or what to do about one that is not there."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.api import Study
from jaxattn.lab.books.book import Item, Scale
from jaxattn.lab.books.findings import CANNOT_TELL, DIFFERS, Finding, measure, verdict
from jaxattn.lab.engine.manifest import differences
from jaxattn.lab.results import figures, style
from jaxattn.lab.results.layout import texts
from jaxattn.lab.results.load import load
from jaxattn.lab.results.run import Run
from jaxattn.lab.storage.files import inside

# Sharp on dense screens: twice the pixels that a page shows them with.
PIXELS_PER_INCH = 220
SHOWN_PER_INCH = 125
METRES_PER_INCH = 0.0254
NOT_RUN = "not run"


@dataclass(frozen=True)
class Picture:
    """A figure as PNG, with its file name and its caption."""

    file: str
    caption: str
    data: bytes

    @property
    def width(self) -> int:
        """Its width on a page in CSS pixels: that of the paper, whatever its resolution."""
        # Records may be anybody's: of the file no more is read than the two numbers.
        mark = self.data[:4096].find(b"pHYs") + 4
        density = (
            int.from_bytes(self.data[mark : mark + 4]) * METRES_PER_INCH if mark > 3 else PIXELS_PER_INCH
        )
        return round(int.from_bytes(self.data[16:20]) * SHOWN_PER_INCH / max(density, 1))

    def alt(self, item: Item) -> str:
        """What it shows, for whoever cannot see it."""
        return f"{item.heading}: {self.caption.partition('. ')[0].rstrip('.')}"


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
        tables: further tables by title, of texts.
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
    def ran(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.machine)

    @property
    def reason(self) -> str:
        """Why what does not agree does not; "" if all does, or nothing was found out."""
        doubtful = any(each.verdict in (DIFFERS, CANNOT_TELL) for each in self.findings)
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


def command(item: Item, scale: Scale) -> str:
    """Write the command line that runs an item."""
    words = ["jaxattn", "reproduce", *item.book.option, "--only", item.name]
    words += ["--scale", scale] if scale != "laptop" else []
    words += ["--data-dir", "DIR"] if item.data else []
    return shlex.join(words)


def measured(item: Item, run: Path, scale: Scale, out: Path, overrides: Sequence[str] = ()) -> Section | None:
    """Measure a run; None if there is none that is finished.

    What is run, and the code that measures it, is the item's: of a results folder, which may be anybody's,
    nothing is imported.

    Args:
        item: the item.
        run: its run.
        scale: its scale.
        out: the folder of results, outside of which nothing is read.
        overrides: further overrides that it was run with.
    """
    loaded = _finished(run, out)
    if not item.measure or loaded is None:
        return None
    study = item.study(scale, overrides=overrides)
    changed = differences(dict(loaded.manifest["config"]), study.config)
    ran = [(cell["settings"], cell.get("config_hash")) for cell in loaded.manifest["cells"]]
    if changed or ran != [(cell.settings, cell.config_hash) for cell in study.cells]:
        return missing(item, scale, f"{run} holds a run of other settings; delete it")
    try:
        found = measure(loaded, item)
        pictures = _pictures(loaded, item)
        facts = _facts(loaded, study, item, scale)
    # Tables that anybody has written can surface as almost any exception.
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        return Section(item, CANNOT_TELL, command(item, scale), f"the run cannot be read: {reason}")
    findings = tuple(found.findings)
    return Section(
        item,
        verdict(findings),
        command(item, scale),
        facts=facts,
        findings=findings,
        tables={title: texts(table) for title, table in found.tables.items()},
        pictures=pictures,
        seconds=loaded.manifest["wall_time_s"],
        machine=_machine(loaded),
    )


def missing(item: Item, scale: Scale, why: str = "") -> Section:
    """Say what to do about an item that is not there, after why it is not."""
    if item.elsewhere:
        return Section(item, "shown elsewhere", item.elsewhere.command)
    remedy = f"run `{command(item, scale)}`"
    if item.data:
        remedy += f", with DIR/{item.data.below}: {item.data.what}"
    return Section(item, NOT_RUN, command(item, scale), f"{why}; {remedy}" if why else remedy)


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


def _facts(loaded: Run, study: Study, item: Item, scale: Scale) -> dict[str, str]:
    seeds = loaded.manifest["seeds"]
    memory = loaded.manifest.get("peak_memory_mib")
    facts = {
        "sweep file": f"{item.book.place}/{item.name}/study.toml",
        "overrides": ", ".join(item.laptop) if scale == "laptop" and item.laptop else "none",
        "model": models(study),
        "cells × seeds": f"{len(loaded.manifest['cells'])} × {len(seeds)}",
        "run time": f"{loaded.manifest['wall_time_s']:.0f} s",
        **({"published run time": item.takes} if item.takes else {}),
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


def models(study: Study) -> str:
    """Name the kinds of the models in a study, and their widths if they have one."""
    tables = [cell.tables["model"] for cell in study.cells]
    kinds, dims = (dict.fromkeys(str(x[key]) for x in tables if key in x) for key in ("kind", "dim"))
    return ", d = ".join(", ".join(names) for names in (kinds, dims) if names)


def _pictures(loaded: Run, item: Item) -> tuple[Picture, ...]:
    pictures = []
    for number, spec in enumerate(item.figures):
        drawn = figures.draw(loaded, spec)
        name = f"figures/{item.name}{f'-{number + 1}' if number else ''}.png"
        pictures.append(Picture(name, drawn.caption, style.png(drawn.figure, PIXELS_PER_INCH)))
    return tuple(pictures)
