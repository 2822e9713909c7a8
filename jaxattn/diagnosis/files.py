"""A diagnosis for reading: tables, one page of Markdown, the tokens as CSV, a figure like the paper's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from jaxattn.core.errors import RunError
from jaxattn.diagnosis.diagnose import BINS, Diagnosis
from jaxattn.results import layout as files
from jaxattn.results.drawn import Drawn
from jaxattn.results.labels import format_number, interval
from jaxattn.results.read import TOKEN_COLUMNS
from jaxattn.results.run import Run
from jaxattn.results.token_figures import importance
from jaxattn.results.tokens import with_classes

NOTE = (
    "The null band holds 95 % of random models E_s, p ~ N(0, I/d), v on the sphere, on this corpus. One "
    "step: what a gradient step on E adds to E·v in such a model; it leaves E·p alone. Intervals are 95 % "
    "bootstrap intervals (BCa) over tokens, for the share of sequences that of Clopper and Pearson; "
    "correlations over bins have none. Bins of α hold equally many tokens, those "
    f"of the posterior difference are {BINS} equal intervals."
)


def tables(diagnosis: Diagnosis, number: int = 15) -> list[tuple[str, pd.DataFrame]]:
    """Lay a diagnosis out: titles and tables of sizes, quantities and the tokens that attention prefers."""
    facts = pd.DataFrame(
        [(name, _number(x)) for name, x in diagnosis.facts.items()], columns=["what", "value"]
    )
    found = diagnosis.quantities
    quantities = found[["quantity", "statistic"]].assign(
        **{
            "model [95 %]": [interval(*row) for row in _rows(found, "value", "low", "high")],
            "null band": [
                f"[{format_number(a)}, {format_number(b)}]" for a, b in _rows(found, "null_low", "null_high")
            ],
            "one step": found["healthy"].map(format_number),
            "verdict": found["verdict"],
        }
    )
    # Of every token the row of the class that it speaks for most.
    tokens = diagnosis.tokens.sort_values("alpha", ascending=False, kind="stable").drop_duplicates("id")
    top = tokens.sort_values(["Ep", "id"], ascending=[False, True])
    chosen = tokens[tokens["selected"] > 0].sort_values(["selected", "id"], ascending=[False, True])
    return [
        ("Sizes", facts),
        (f"Correlations with importance over {diagnosis.over}", quantities),
        ("Tokens with the largest E·p", _for_reading(top.head(number), diagnosis)),
        ("Tokens that most sequences select", _for_reading(chosen.head(number), diagnosis)),
    ]


def figure(diagnosis: Diagnosis) -> Drawn:
    """Draw E·v and E·p of every token against its posterior difference, as in the paper's Figure 3."""
    tokens = diagnosis.tokens.assign(cell=0, seed=0, phase="model")
    # A model is what a run of one cell and one phase leaves.
    results = Run(
        Path(),
        {
            "config": {"data": {"class_names": list(diagnosis.class_names)}},
            "cells": [{"cell": 0, "settings": {}}],
            "seeds": [0],
        },
        pd.DataFrame({"phase": ["model"]}),
        tokens[list(TOKEN_COLUMNS)],
    )
    drawn = importance(results)
    caption = drawn.caption.replace(" after phase model, one seed", "")
    caption = caption.replace("; option label draws another", "")
    return replace(drawn, name="importance", caption=caption)


def write(diagnosis: Diagnosis, directory: Path, number: int = 15) -> list[Path]:
    """Write diagnosis.md, tokens.csv and importance.png.

    Args:
        diagnosis: what to write.
        directory: the folder; made if it is not there.
        number: how many tokens the page lists.

    Returns:
        The paths.

    Raises:
        RunError: the folder cannot be written.
    """
    drawn = figure(diagnosis)
    page = ["# Diagnosis", *(f"- {verdict}" for verdict in diagnosis.verdicts)]
    page.append(f"![{drawn.title}]({drawn.name}.png)\n\n{drawn.caption}")
    page += [f"## {title}\n\n{files.markdown(table)}" for title, table in tables(diagnosis, number)]
    page.append(NOTE)
    paths = [directory / name for name in ("diagnosis.md", "tokens.csv", f"{drawn.name}.png")]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(_joined(page), encoding="utf-8")
        named = dict(enumerate(diagnosis.class_names))
        diagnosis.tokens.replace({"class": named}).to_csv(paths[1], index=False)
        paths[2].write_bytes(drawn.png())
    except OSError as error:
        raise RunError(f"{directory}: cannot be written: {error.strerror or error}") from None
    return paths


def _joined(parts: list[str]) -> str:
    text = ""
    for part in parts:
        # Entries of one list stand below each other.
        together = part.startswith("- ") and text.rpartition("\n\n")[2].startswith("- ")
        text = f"{text}{chr(10) * (1 if together else 2)}{part}" if text else part
    return text + "\n"


def _for_reading(tokens: pd.DataFrame, diagnosis: Diagnosis) -> pd.DataFrame:
    named = with_classes(tokens, diagnosis.class_names)
    named = named.rename(columns={"posterior_difference": "posterior difference", "Ep": "E·p", "Ev": "E·v"})
    alone = diagnosis.tokens["class"].nunique() < 2 and not diagnosis.class_names
    return named.drop(columns=["id", *(["class"] if alone else [])]).reset_index(drop=True)


def _rows(frame: pd.DataFrame, *columns: str) -> list[tuple[float, ...]]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


def _number(x: Any) -> str:
    return f"{x:,}" if isinstance(x, int) else format_number(x)
