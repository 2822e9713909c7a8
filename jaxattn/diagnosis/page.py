"""A diagnosis for reading: tables, a page as HTML and Markdown, tokens as CSV, figures like the paper's."""

from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from jaxattn.core.errors import InputError, RunError
from jaxattn.diagnosis.measure import BINS, Measured
from jaxattn.results import layout
from jaxattn.results.drawn import Drawn
from jaxattn.results.labels import format_number, interval
from jaxattn.results.read import TOKEN_COLUMNS
from jaxattn.results.run import Run
from jaxattn.results.token_figures import importance
from jaxattn.results.tokens import with_classes

TEMPLATE = Path(__file__).with_name("page.html")
NOTE = (
    "The null band holds 95 % of random models E_s, p ~ N(0, I/d), v on the sphere, on this corpus. One "
    "step: what a gradient step on E adds to E·v in such a model; it leaves E·p alone. Intervals are 95 % "
    "bootstrap intervals (BCa) over tokens, for the share of sequences that of Clopper and Pearson; "
    "correlations over bins have none. Bins of α hold equally many tokens, those "
    f"of the posterior difference are {BINS} equal intervals."
)


def tables(found: Measured, number: int = 15) -> list[tuple[str, pd.DataFrame]]:
    """Lay a diagnosis out, see `Diagnosis.tables`."""
    facts = pd.DataFrame([(name, _number(x)) for name, x in found.facts.items()], columns=["what", "value"])
    laid = [("Sizes", facts), (f"Correlations with importance over {found.over}", _quantities(found))]
    if len(found.by_class):
        laid.append(("Correlations of E·v with importance for each class", _by_class(found)))
    for h in found.heads:
        of_head = found.tokens[found.tokens["head"] == h]
        # Of every token the row of the class that it speaks for most.
        tokens = of_head.sort_values("alpha", ascending=False, kind="stable").drop_duplicates("id")
        top = tokens.sort_values(["Ep", "id"], ascending=[False, True])
        chosen = tokens[tokens["selected"] > 0].sort_values(["selected", "id"], ascending=[False, True])
        where = f", attention head {h}" if len(found.heads) > 1 else ""
        laid.append((f"Tokens with the largest E·p{where}", _for_reading(top.head(number), found)))
        laid.append((f"Tokens that most sequences select{where}", _for_reading(chosen.head(number), found)))
        if len(found.by_class):
            laid.append((f"Tokens with the largest E·v for each class{where}", _of_classes(of_head, found)))
    return laid


def figure(found: Measured, head: int = 0) -> Drawn:
    """Draw an attention head, see `Diagnosis.figure`."""
    if head not in found.heads:
        raise InputError(f"head: {head}; there are {len(found.heads)}, numbered from 0")
    tokens = found.tokens[found.tokens["head"] == head].assign(cell=0, seed=0, phase="model")
    # A model is what a run of one cell and one phase leaves.
    results = Run(
        Path(),
        {
            "config": {"data": {"class_names": list(found.class_names)}},
            "cells": [{"cell": 0, "settings": {}}],
            "seeds": [0],
        },
        pd.DataFrame({"phase": ["model"]}),
        tokens[list(TOKEN_COLUMNS)],
    )
    drawn = importance(results)
    several = len(found.heads) > 1
    caption = drawn.caption.replace(" after phase model, one seed", f", head {head}" if several else "")
    caption = caption.replace("; option label draws another", "")
    title = f"{drawn.title}, attention head {head}" if several else drawn.title
    return replace(
        drawn, name=f"importance_{head}" if several else "importance", title=title, caption=caption
    )


def html(found: Measured, number: int = 15) -> str:
    """Write the page as HTML that holds everything it shows."""
    return _filled(found, number, [figure(found, h) for h in found.heads])


def framed(found: Measured) -> str:
    """Put the page into a frame, as a notebook shows it: its style stays its own."""
    style = "width:100%;height:60rem;border:0"
    return f'<iframe title="Diagnosis" srcdoc="{escape(html(found))}" style="{style}"></iframe>'


def write(found: Measured, directory: Path, number: int = 15) -> list[Path]:
    """Write all files, see `Diagnosis.write`."""
    drawn = [figure(found, h) for h in found.heads]
    names = dict(enumerate(found.class_names))
    contents = {
        "diagnosis.html": _filled(found, number, drawn).encode(),
        "diagnosis.md": _markdown(found, number, drawn).encode(),
        "tokens.csv": found.tokens.replace({"class": names}).to_csv(index=False).encode(),
        **{f"{each.name}.png": each.png() for each in drawn},
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (directory / name).write_bytes(content)
    except OSError as error:
        raise RunError(f"{directory}: cannot be written: {error.strerror or error}") from None
    return [directory / name for name in contents]


def _filled(found: Measured, number: int, drawn: list[Drawn]) -> str:
    shown = [(title, layout.texts(table), _keys(table)) for title, table in tables(found, number)]
    pictures = [{"title": x.title, "caption": x.caption, "data": x.png()} for x in drawn]
    return layout.fill(TEMPLATE, verdicts=found.verdicts, figures=pictures, tables=shown, note=_note(found))


def _markdown(found: Measured, number: int, drawn: list[Drawn]) -> str:
    page = ["# Diagnosis", "\n".join(f"- {verdict}" for verdict in found.verdicts)]
    page += [f"![{each.title}]({each.name}.png)\n\n{each.caption}" for each in drawn]
    page += [f"## {title}\n\n{layout.markdown(table)}" for title, table in tables(found, number)]
    return "\n\n".join([*page, _note(found)]) + "\n"


def _note(found: Measured) -> str:
    if len(found.heads) == 1:
        return NOTE
    return f"{NOTE} Of {len(found.heads)} attention heads one in twenty leaves a null band by chance."


def _keys(table: pd.DataFrame) -> int:
    """Count the columns that say what a row is of."""
    return max(1, sum(name in ("head", "class", "quantity", "statistic") for name in table.columns[:4]))


def _quantities(found: Measured) -> pd.DataFrame:
    rows = found.quantities
    if len(found.heads) == 1:
        return _with_intervals(rows, ["quantity", "statistic"])
    # What heads share is said once.
    once = found.shared & rows["quantity"].str.startswith("E·v")
    rows = rows[~once | (rows["head"] == 0)].assign(head=rows["head"].astype(str).mask(once, "all"))
    return _with_intervals(rows, ["head", "quantity", "statistic"])


def _by_class(found: Measured) -> pd.DataFrame:
    rows = found.by_class
    rows = rows[rows["head"] == 0] if found.shared else rows
    names = dict(enumerate(found.class_names))
    rows = rows.assign(**{"class": rows["class"].map(lambda k: names.get(k, str(k)))})
    several = len(found.heads) > 1 and not found.shared
    return _with_intervals(rows, [*(["head"] if several else []), "class", "quantity", "statistic"])


def _with_intervals(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    laid = rows[keys].assign(
        **{
            "model [95 %]": [interval(*row) for row in _rows(rows, "value", "low", "high")],
            "null band": [
                f"[{format_number(a)}, {format_number(b)}]" for a, b in _rows(rows, "null_low", "null_high")
            ],
            "one step": rows["healthy"].map(format_number),
            "verdict": rows["verdict"],
        }
    )
    return laid.reset_index(drop=True)


def _of_classes(of_head: pd.DataFrame, found: Measured, number: int = 5) -> pd.DataFrame:
    """List the tokens whose values speak most for each class."""
    order = of_head.sort_values(["class", "Ev", "id"], ascending=[True, False, True])
    return _for_reading(order.groupby("class").head(number), found)


def _for_reading(tokens: pd.DataFrame, found: Measured) -> pd.DataFrame:
    named = with_classes(tokens, found.class_names)
    named = named.rename(columns={"posterior_difference": "posterior difference", "Ep": "E·p", "Ev": "E·v"})
    alone = found.tokens["class"].nunique() < 2 and not found.class_names
    return named.drop(columns=["id", "head", *(["class"] if alone else [])]).reset_index(drop=True)


def _rows(frame: pd.DataFrame, *columns: str) -> list[tuple[float, ...]]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


def _number(x: Any) -> str:
    return f"{x:,}" if isinstance(x, int) else format_number(x)
