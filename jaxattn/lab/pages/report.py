"""Report of a run: figures, a summary table and one self-contained page."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import pandas as pd
from markupsafe import Markup

from jaxattn.core.errors import InputError, RunError
from jaxattn.core.version import __url__
from jaxattn.lab.figures.draw import FigureProgress, Problem, custom_captions, draw_all
from jaxattn.lab.figures.rendered import Picture, RenderedFigure
from jaxattn.lab.loaded import load
from jaxattn.lab.pages import layout, overview, seeds
from jaxattn.lab.pages.definitions import definitions, model_formula
from jaxattn.lab.pages.overview import caveats
from jaxattn.lab.results.labels import duration, format_number, setting
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import aggregate, last_steps, summary_rows, summary_table, summary_words
from jaxattn.lab.results.tokens import final_tokens, named_tokens, top, with_classes
from jaxattn.lab.storage import files
from jaxattn.lab.storage.captions import DRAWN, StoredCaptions

_TEMPLATE = Path(__file__).with_name("report.html")
TOP = 20
Format = Literal["png", "pdf"]
# Maximum numbers of table rows and of failures on a page. The results files contain all of them.
_ROWS = 1000


@dataclass(frozen=True)
class Report:
    """Report written by `write_report`.

    Attributes:
        page: path of report.html.
        summary: path of summary.csv, which contains the last step of each phase.
        figures: paths of the figures: an SVG file each, and files in further formats.
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
    own: Mapping[str, Callable[..., object]] = MappingProxyType({}),
    progress: FigureProgress = lambda what, share: None,
    formats: Sequence[Format] = (),
    elements: Sequence[str] = (),
) -> Report:
    """Write figures/*.svg, summary.csv and report.html to a results folder.

    Args:
        directory: a results folder. The output is deterministic: the same folder always yields the same
            bytes.
        own: user-defined figure functions, keyed by kind, as in the sweep file; see `figures.draw_all`.
        progress: progress callback (what, fraction completed).
        formats: further formats of the figures. User-defined figures of which only the SVG file is left are
            not converted.
        elements: HTML elements to show before the figures, such as `Explorer.figure()`. They are not escaped.

    Returns:
        The files, and the figures that could not be drawn.

    Raises:
        InputError: the folder cannot be read; see `load`.
        RunError: the folder is not writable.
    """
    results = load(directory)
    drawn, problems = draw_all(results, own, progress)
    images, unshown = _rendered(drawn, formats, progress)
    drawn = [each for each in drawn if each.name in images]
    problems += unshown
    progress("summary.csv", 1.0)
    summary = aggregate(replace(results, records=last_steps(results.records)))
    table = summary.to_csv(index=False, float_format="%.9g", lineterminator="\n")
    progress("report.html", 1.0)
    shown = [images[each.name]["svg"] for each in drawn]
    html = render(results, drawn, shown, [problem.line for problem in problems], elements)
    content = {"report.html": html.encode("utf-8", "backslashreplace"), "summary.csv": table.encode()}
    for name, files_of in images.items():
        content |= {f"figures/{name}.{suffix}": image for suffix, image in files_of.items()}
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
    drawn: Sequence[RenderedFigure | Picture], formats: Sequence[Format], progress: FigureProgress
) -> tuple[dict[str, dict[str, bytes]], list[Problem]]:
    """Return the files of each figure by suffix, keyed by the name of the figure, and the problems."""
    images: dict[str, dict[str, bytes]] = {}
    problems = []
    for number, each in enumerate(drawn):
        progress(f"writing figure {number + 1} of {len(drawn)}", number / len(drawn))
        try:
            rendered = {"svg": each.svg()}
            if isinstance(each, RenderedFigure):
                rendered |= {suffix: getattr(each, suffix)() for suffix in formats}
        except Exception as error:
            reason = " ".join(str(error).split())
            location = f"figures[{each.number}] ({each.name})"
            problems.append(
                Problem(f"{location} could not be drawn: {type(error).__name__}: {reason:.200}", "")
            )
        else:
            images[each.name] = rendered
    return images, problems


def render(
    results: Run,
    figures: list[RenderedFigure | Picture],
    images: list[bytes],
    problems: Sequence[str],
    elements: Sequence[str] = (),
) -> str:
    """Render the self-contained HTML page, escaping all text from the run.

    `images` contains the figures as SVG, `problems` describes figures that could not be drawn, and `elements`
    are further HTML elements.
    """
    shown_metrics = overview.metrics(results)
    others = [name for name in overview.recorded(results) if name not in shown_metrics]
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
        tables=_study(results),
        formula=model_formula(results.tables(int(results.manifest["cells"][0]["cell"]))),
        summaries=_summaries(results),
        summary_words=summary_words(results),
        caveats=caveats(results),
        metrics=list(seeds.of_metrics(results, shown_metrics)),
        others=definitions(others, results.declared_labels),
        page_of_metrics=_page_of_metrics(),
        figures=layout.pictures(figures, images),
        elements=[Markup(element) for element in elements],
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
        "wall time": duration(seconds),
        "peak memory": None if memory is None else f"{memory / 1024:.1f} GiB",
        "started": manifest.get("started"),
        "config hash": manifest.get("config_hash"),
        "source commit": manifest.get("git_commit"),
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items()),
    }
    return {name: str(fact) for name, fact in facts.items() if fact}


def _page_of_metrics() -> str:
    """Return the address of the documentation of metrics, or its place in the repository."""
    page = "docs/reference/metrics.md"
    return f"{__url__}/blob/main/{page}" if __url__ else page


def _study(results: Run) -> list[tuple[str, str]]:
    """Return the parts of the study with their settings in the first cell; swept keys have no value."""
    tables = results.tables(int(results.manifest["cells"][0]["cell"]))
    parts = [(name, name, tables.get(name) or {}) for name in ("data", "model", "loss")]
    parts += [
        (f"phase {table.get('name')}", f"phases.{table.get('name')}", table)
        for table in tables.get("phases") or ()
    ]
    return [(title, _settings(table, location, results.axes)) for title, location, table in parts]


def _settings(table: Mapping[str, Any], location: str, axes: Sequence[str]) -> str:
    shown = {key: x for key, x in table.items() if key not in ("kind", "name") and x not in (None, {}, [])}
    values = [
        f"{key} = {'swept' if f'{location}.{key}' in axes else json.dumps(x, ensure_ascii=False)}"
        for key, x in shown.items()
    ]
    return ": ".join(filter(None, [str(table.get("kind", "")), ", ".join(values)]))


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
    several = [chosen, every] if len(every) > len(chosen) else [chosen]
    rows, keys = results.records[["cell", "phase"]].drop_duplicates(), len(results.axes) + 1
    if len(rows) > _ROWS:
        # Formatting numbers is slow, so leave out the cells that do not fit on the page.
        shown = results.records["cell"].isin(rows["cell"].iloc[:_ROWS].unique())
        few = replace(results, records=results.records[shown])
        return [(summary_rows(few, metrics=names).iloc[:_ROWS], keys, len(rows)) for names in several]
    tables = [summary_table(results, metrics=names) for names in several]
    return [(table, 1 if table.columns[0] == "metric" else keys, len(table)) for table in tables]


def _write(path: Path, content: bytes, folder: Path) -> Path:
    try:
        if path.parent.name == "figures":
            path.parent.mkdir(exist_ok=True)
        files.write_file(path, content, folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"{path}: cannot be written ({reason}); free disk space or make it writable") from None
    return path
