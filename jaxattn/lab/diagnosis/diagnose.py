"""What the paper's figures mean for somebody's own model: does E·v know importance, does E·p select it?

Whatever classifier E, p and v come from, its numbers are held against two references on the same corpus: the
null band, what random E, p and v of that shape give, and the healthy reference, what one gradient step gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxattn.core.errors import InputError, writing
from jaxattn.data.corpus import Corpus
from jaxattn.lab.diagnosis.inputs import read_weights
from jaxattn.lab.diagnosis.measure import BINS, Measured, Settings, measure
from jaxattn.lab.results import layout
from jaxattn.lab.results.drawn import Drawn
from jaxattn.lab.results.labels import format_number, interval
from jaxattn.lab.results.read import TOKEN_COLUMNS
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.token_figures import importance
from jaxattn.lab.results.tokens import with_classes

TEMPLATE = Path(__file__).with_name("page.html")
NOTE = (
    "The null band holds 95 % of random models E_s, p ~ N(0, I/d), v on the sphere, on this corpus. One "
    "step: what a gradient step on E adds to E·v in such a model; it leaves E·p alone. Intervals are 95 % "
    "bootstrap intervals (BCa) over tokens, for the share of sequences that of Clopper and Pearson; "
    "correlations over bins have none. Bins of α hold equally many tokens, those "
    f"of the posterior difference are {BINS} equal intervals."
)


@dataclass(frozen=True, repr=False)
class Diagnosis(Measured):
    """What a model knows of the importance of tokens: `measure.Measured`, and what can be asked of it.

    A notebook shows the page that `write` makes, with the same content.
    """

    def tables(self, number: int = 15) -> list[tuple[str, pd.DataFrame]]:
        """Lay out for reading: titles and tables of sizes, quantities, classes and preferred tokens.

        Args:
            number: how many tokens to list, of each attention head.
        """
        facts = [(name, _number(x)) for name, x in self.facts.items()]
        sizes = pd.DataFrame(facts, columns=["what", "value"])
        laid = [("Sizes", sizes), (f"Correlations with importance over {self.over}", _quantities(self))]
        if len(self.by_class):
            laid.append(("Correlations of E·v with importance for each class", _by_class(self)))
        for h in self.heads:
            of_head = self.tokens[self.tokens["head"] == h]
            # Of every token the row of the class that it speaks for most.
            tokens = of_head.sort_values("alpha", ascending=False, kind="stable").drop_duplicates("id")
            top = tokens.sort_values(["Ep", "id"], ascending=[False, True])
            chosen = tokens[tokens["selected"] > 0].sort_values(["selected", "id"], ascending=[False, True])
            where = f", attention head {h}" if len(self.heads) > 1 else ""
            top, chosen = (_for_reading(rows.head(number), self) for rows in (top, chosen))
            laid += [(f"Tokens with the largest E·p{where}", top)]
            laid += [(f"Tokens that most sequences select{where}", chosen)]
            if len(self.by_class):
                most = _of_classes(of_head, self)
                laid.append((f"Tokens with the largest E·v for each class{where}", most))
        return laid

    def figure(self, head: int = 0) -> Drawn:
        """Draw E·v and E·p of every token against its posterior difference, as in the paper's Figure 3.

        Args:
            head: which attention head.

        Raises:
            InputError: no such attention head.
        """
        if head not in self.heads:
            raise InputError(f"head: {head}; there are {len(self.heads)}, numbered from 0")
        tokens = self.tokens[self.tokens["head"] == head].assign(cell=0, seed=0, phase="model")
        # A model is what a run of one cell and one phase leaves.
        results = Run(
            Path(),
            {
                "config": {"data": {"class_names": list(self.class_names)}},
                "cells": [{"cell": 0, "settings": {}}],
                "seeds": [0],
            },
            pd.DataFrame({"phase": ["model"]}),
            tokens[list(TOKEN_COLUMNS)],
        )
        drawn = importance(results)
        several = len(self.heads) > 1
        caption = drawn.caption.replace(" after phase model, one seed", f", head {head}" if several else "")
        caption = caption.replace("; option label draws another", "")
        title = f"{drawn.title}, attention head {head}" if several else drawn.title
        return replace(
            drawn, name=f"importance_{head}" if several else "importance", title=title, caption=caption
        )

    def html(self, number: int = 15) -> str:
        """Write the page: verdicts, figures and tables, with all that it shows.

        Args:
            number: how many tokens to list, of each attention head.
        """
        return _filled(self, number, [self.figure(h) for h in self.heads])

    def write(self, directory: str | Path, number: int = 15) -> list[Path]:
        """Write diagnosis.html, diagnosis.md, tokens.csv and a figure of each attention head.

        Args:
            directory: the folder; made if it is not there.
            number: how many tokens the page lists.

        Returns:
            The paths.

        Raises:
            RunError: the folder cannot be written.
        """
        directory = Path(directory)
        drawn = [self.figure(h) for h in self.heads]
        names = dict(enumerate(self.class_names))
        contents = {
            "diagnosis.html": _filled(self, number, drawn).encode(),
            "diagnosis.md": _markdown(self, number, drawn).encode(),
            "tokens.csv": self.tokens.replace({"class": names}).to_csv(index=False).encode(),
            **{f"{each.name}.png": each.png() for each in drawn},
        }
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            for name, content in contents.items():
                (directory / name).write_bytes(content)
        return [directory / name for name in contents]

    def __repr__(self) -> str:
        return "\n".join([f"{type(self).__name__} over {self.over}", *self.verdicts])

    def _repr_html_(self) -> str:
        # In a frame the page's style stays its own.
        style = "width:100%;height:60rem;border:0"
        return f'<iframe title="Diagnosis" srcdoc="{escape(self.html())}" style="{style}"></iframe>'


def diagnose(
    embedding: Any,
    query: Any,
    head: Any,
    corpus: Corpus,
    *,
    tokens: Sequence[str] | None = None,
    min_count: int = 50,
    important: float = 0.5,
    draws: int = 200,
    resampled: int = 1000,
    seed: int = 0,
) -> Diagnosis:
    """Hold E·v and E·p of a trained model against the importance of tokens in a corpus.

    Importance is α and the posterior difference. E·v should rise with both, E·p with their size: attention
    selects tokens that speak for any class. For K > 2 classes E·v_k is held against class k, each alone and
    averaged; E·p is held against the largest size over the classes. Of H attention heads each is measured.

    The null band holds 95 % of the models E_s, p ~ N(0, I/d), v uniform on the sphere. The healthy reference
    of E·v is what one gradient step on E adds to it in such a model, (E¹ - E⁰)·v, whatever the step size.

    Args:
        embedding: E, (V, d) float; row s is token s of the corpus.
        query: p, (d,) float, or (H, d) for H attention heads: of keys W E_s and a query x, Wᵀ x.
        head: v, (d,) or (d, K) float, or (K, d) as PyTorch's linear layers store it; a square one is (d, K).
            Two columns for two classes stand for their difference. With a leading axis of H, one for each
            attention head.
        corpus: n labelled sequences over V tokens.
        tokens: V names; the numbers of the tokens by default.
        min_count: tokens that occur less often are in no statistic.
        important: tokens with |posterior difference| of at least this, and frequent enough, are important.
        draws: number of random models.
        resampled: number of bootstrap resamples of tokens, for correlations.
        seed: seed of all that is random.

    Returns:
        The diagnosis.

    Raises:
        InputError: shapes that do not fit or can be read in two ways, NaN or inf, fewer than three tokens
            that are frequent enough.

    Source:
        Figures 1-3, Lemma 4.1 and Section 4 of arXiv 2505.17282.
    """
    model = read_weights(embedding, query, head, corpus)
    if tokens is not None and len(tokens) != len(model.embedding):
        raise InputError(
            f"tokens: {len(tokens)} names for V = {len(model.embedding)} tokens; give one for each"
        )
    if draws < 1 or resampled < 1:
        raise InputError(f"draws {draws}, resampled {resampled}: give at least 1")
    settings = Settings(min_count, important, draws, resampled, seed, np.asarray(embedding).dtype)
    found = measure(model, corpus, tokens, settings)
    return Diagnosis(**vars(found))


def _filled(found: Diagnosis, number: int, drawn: list[Drawn]) -> str:
    shown = [(title, layout.texts(table), _keys(table)) for title, table in found.tables(number)]
    images = [x.png() for x in drawn]
    pictures = [
        {"title": x.title, "caption": x.caption, "width": layout.shown_width(image), "data": image}
        for x, image in zip(drawn, images, strict=True)
    ]
    return layout.fill(TEMPLATE, verdicts=found.verdicts, figures=pictures, tables=shown, note=_note(found))


def _markdown(found: Diagnosis, number: int, drawn: list[Drawn]) -> str:
    page = ["# Diagnosis", "\n".join(f"- {verdict}" for verdict in found.verdicts)]
    page += [f"![{each.title}]({each.name}.png)\n\n{each.caption}" for each in drawn]
    page += [f"## {title}\n\n{layout.markdown(table)}" for title, table in found.tables(number)]
    return "\n\n".join([*page, _note(found)]) + "\n"


def _note(found: Diagnosis) -> str:
    if len(found.heads) == 1:
        return NOTE
    return f"{NOTE} Of {len(found.heads)} attention heads one in twenty leaves a null band by chance."


def _keys(table: pd.DataFrame) -> int:
    """Count the columns that say what a row is of."""
    return max(1, sum(name in ("head", "class", "quantity", "statistic") for name in table.columns[:4]))


def _quantities(found: Diagnosis) -> pd.DataFrame:
    rows = found.quantities
    if len(found.heads) == 1:
        return _with_intervals(rows, ["quantity", "statistic"])
    # What heads share is said once.
    once = found.shared & rows["quantity"].str.startswith("E·v")
    rows = rows[~once | (rows["head"] == 0)].assign(head=rows["head"].astype(str).mask(once, "all"))
    return _with_intervals(rows, ["head", "quantity", "statistic"])


def _by_class(found: Diagnosis) -> pd.DataFrame:
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


def _of_classes(of_head: pd.DataFrame, found: Diagnosis, number: int = 5) -> pd.DataFrame:
    """List the tokens whose values speak most for each class."""
    order = of_head.sort_values(["class", "Ev", "id"], ascending=[True, False, True])
    return _for_reading(order.groupby("class").head(number), found)


def _for_reading(tokens: pd.DataFrame, found: Diagnosis) -> pd.DataFrame:
    named = with_classes(tokens, found.class_names)
    named = named.rename(columns={"posterior_difference": "posterior difference", "Ep": "E·p", "Ev": "E·v"})
    alone = found.tokens["class"].nunique() < 2 and not found.class_names
    return named.drop(columns=["id", "head", *(["class"] if alone else [])]).reset_index(drop=True)


def _rows(frame: pd.DataFrame, *columns: str) -> list[tuple[float, ...]]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


def _number(x: Any) -> str:
    return f"{x:,}" if isinstance(x, int) else format_number(x)
