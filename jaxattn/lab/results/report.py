"""Report of a run: figures, a summary table and one self-contained page."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pandas as pd

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.results import layout, overview, style
from jaxattn.lab.results.drawn import DRAWN, Picture, RenderedFigure, StoredCaptions
from jaxattn.lab.results.figures import FigureProgress, Problem, custom_captions, draw_all
from jaxattn.lab.results.labels import format_number, setting
from jaxattn.lab.results.load import load
from jaxattn.lab.results.overview import caveats
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import aggregate, last_steps, summary_table, summary_words
from jaxattn.lab.results.tokens import final_tokens, named_tokens, top, with_classes
from jaxattn.lab.storage import files

_TEMPLATE = Path(__file__).with_name("report.html")
TOP = 20
# Maximum numbers of table rows and of failures on a page. The results files contain all of them.
_ROWS = 1000


@dataclass(frozen=True)
class Report:
    """Report written by `write_report`.

    Attributes:
        page: path of report.html.
        summary: path of summary.csv, which contains the last step of each phase.
        figures: paths of the figures: a PNG file each and, if the figure was rendered again, a PDF file.
        problems: figures that could not be drawn, with the reasons.
        made_by: note on the package version that produced the run; empty if that version is installed.
    """

    page: Path
    summary: Path
    figures: tuple[Path, ...]
    problems: tuple[Problem, ...]
    made_by: str

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the paths of all files, starting with the page."""
        return (self.page, self.summary, *self.figures)


def write_report(
    directory: str | Path,
    own: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    progress: FigureProgress = lambda what, share: None,
) -> Report:
    """Write figures/*.png and *.pdf, summary.csv and report.html to a results folder.

    Args:
        directory: a results folder. The output is deterministic: the same folder always yields the same
            bytes.
        own: user-defined figure functions, keyed by kind, as in the sweep file; see `figures.draw_all`.
        progress: progress callback (what, fraction completed).

    Returns:
        The files, and the figures that could not be drawn.

    Raises:
        InputError: the folder cannot be read; see `load`.
        RunError: the folder is not writable.
    """
    results = load(directory)
    drawn, problems = draw_all(results, own, progress)
    images, vectors, unshown = _rendered(drawn, progress)
    drawn = [each for each in drawn if each.name in images]
    problems += unshown
    progress("summary", 1.0)
    summary = aggregate(replace(results, records=last_steps(results.records)))
    progress("summary.csv", 1.0)
    table = summary.to_csv(index=False, float_format="%.9g", lineterminator="\n")
    progress("report.html", 1.0)
    html = render(results, drawn, list(images.values()), [problem.line for problem in problems])
    content = {"report.html": html.encode("utf-8", "backslashreplace"), "summary.csv": table.encode()}
    for name, image in images.items():
        content[f"figures/{name}.png"] = image
        if name in vectors:
            content[f"figures/{name}.pdf"] = vectors[name]
    sums = {name: files.digest(written) for name, written in content.items()}
    page, summary, *figures = (
        _write(results.directory / name, x, results.directory) for name, x in content.items()
    )
    _write(
        results.directory / DRAWN,
        files.sealed(msgspec.to_builtins(StoredCaptions(sums, custom_captions(results, drawn))), indent=2),
        results.directory,
    )
    return Report(page, summary, tuple(figures), tuple(problems), results.made_by)


def _rendered(
    drawn: Sequence[RenderedFigure | Picture], progress: FigureProgress
) -> tuple[dict[str, bytes], dict[str, bytes], list[Problem]]:
    images, vectors, problems = {}, {}, []
    for number, each in enumerate(drawn):
        progress(f"writing figure {number + 1} of {len(drawn)}", number / len(drawn))
        try:
            image = each.png()
            if isinstance(each, RenderedFigure):
                vectors[each.name] = style.pdf(each.figure)
        except Exception as error:
            reason = " ".join(str(error).split())
            location = f"figures[{each.number}] ({each.name})"
            problems.append(
                Problem(f"{location} could not be drawn: {type(error).__name__}: {reason:.200}", "")
            )
        else:
            images[each.name] = image
    return images, vectors, problems


def render(
    results: Run, figures: list[RenderedFigure | Picture], images: list[bytes], problems: Sequence[str]
) -> str:
    """Render the self-contained HTML page, escaping all text from the run.

    `images` contains the figures as PNG, and `problems` describes figures that could not be drawn.
    """
    shown = [
        {"title": each.title, "caption": each.caption, "width": layout.shown_width(image), "data": image}
        for each, image in zip(figures, images, strict=True)
    ]
    return layout.fill(
        _TEMPLATE,
        name=results.manifest["name"],
        description=results.manifest.get("description", ""),
        command=results.command,
        failures=results.manifest.get("failures", [])[:_ROWS],
        failed=len(results.manifest.get("failures", [])),
        problems=problems,
        facts=_facts(results.manifest)
        | {
            name: words
            for name, words in (("randomness", results.held), ("source", results.made_by))
            if words
        },
        rows=_ROWS,
        cells=results.cells.iloc[:_ROWS].map(setting) if results.axes else None,
        all_cells=len(results.cells),
        summaries=_summaries(results),
        summary_words=summary_words(results),
        caveats=caveats(results),
        figures=shown,
        tops=_tops(results),
        config=json.dumps(results.manifest["config"], indent=2, ensure_ascii=False),
    )


def _facts(manifest: dict[str, Any] | Any) -> dict[str, str]:
    device, kind = manifest["device"], manifest["device"].get("kind") or manifest["device"].get("platform")
    seconds, memory = manifest["wall_time_s"], manifest["peak_memory_mib"]
    facts = {
        "cells × seeds": f"{len(manifest['cells'])} × {len(manifest['seeds'])}",
        "status": None if manifest.get("status") == "finished" else manifest.get("status"),
        "device": f"{device.get('count', 1)} × {kind}" if kind else None,
        "precision": manifest.get("dtype"),
        "wall time": _duration(seconds),
        "peak memory": None if memory is None else f"{memory / 1024:.1f} GiB",
        "started": manifest.get("started"),
        "config hash": manifest.get("config_hash"),
        "source commit": manifest.get("git_commit"),
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items()),
    }
    return {name: str(fact) for name, fact in facts.items() if fact}


def _tops(results: Run) -> list[dict[str, Any]]:
    tops = []
    for phase in results.tokens["phase"].unique() if named_tokens(results) else []:
        with suppress(InputError):
            tokens = final_tokens(results, phase=phase, cell=int(results.manifest["cells"][0]["cell"]))
            best = with_classes(top(tokens, count=TOP), tokens.names)
            shown = pd.DataFrame({"token": best["token"].astype(str)})
            if len(tokens.classes) > 1 or tokens.names:
                shown["class"] = best["class"].astype(str)
            for name, column in (("E·p", "Ep"), ("E·v", "Ev"), ("α", "alpha")):
                shown[name] = best[column].map(format_number)
            shown["count"] = best["count"].map("{:,}".format)
            tops.append({"phase": phase, "how": tokens.over_seeds, "table": shown})
    return tops


def _summaries(results: Run) -> list[tuple[pd.DataFrame, int, int]]:
    """Return, for each summary table, its first rows, number of key columns and total number of rows."""
    chosen, every = overview.metrics(results), overview.recorded(results)
    tables = [
        summary_table(results, metrics=names)
        for names in ([chosen, every] if len(every) > len(chosen) else [chosen])
    ]
    return [
        (table.iloc[:_ROWS], 1 if table.columns[0] == "metric" else len(results.axes) + 1, len(table))
        for table in tables
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _write(path: Path, content: bytes, folder: Path) -> Path:
    try:
        if path.parent.name == "figures":
            path.parent.mkdir(exist_ok=True)
        files.write_file(path, content, folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"{path}: cannot be written ({reason}); free disk space or make it writable") from None
    return path
