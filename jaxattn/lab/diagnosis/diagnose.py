"""Diagnosis of given weights: test whether E·v and E·p of a classifier reflect token importance.

The statistics are compared with two references on the same corpus: the null band, which is the range
of the statistics for random E, p and v of the same shapes, and the statistics of the change in E·v in
one gradient step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus
from jaxattn.lab.diagnosis.measure import Measurements, measure_model
from jaxattn.lab.diagnosis.read_inputs import read_weights
from jaxattn.lab.diagnosis.references import Settings
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.token_figures import importance
from jaxattn.lab.pages import layout
from jaxattn.lab.pages.layout import framed, summary_page, write_contents
from jaxattn.lab.results.correlations import BINS
from jaxattn.lab.results.labels import format_number, interval
from jaxattn.lab.results.read import TOKEN_COLUMNS
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.tokens import with_classes

NOTE = (
    "The null band holds 95 % of random models E_s, p ~ N(0, I/d), v uniform on the sphere, on this corpus. "
    "One step: the change of E·v by one gradient step on E in such a model; the step does not change E·p. "
    "Intervals are 95 % bootstrap intervals (BCa) over tokens, and Clopper-Pearson intervals for the share "
    "of sequences; correlations over bins have no interval. Bins of α hold equally many tokens; those "
    f"of the posterior difference are {BINS} equal intervals."
)


@dataclass(frozen=True, repr=False)
class Diagnosis(Measurements):
    """Statistics that relate scores and values to token importance, with tables, figures and a page.

    The fields are those of `measure.Measurements`. Notebooks display the page that `write` saves.
    """

    def tables(self, number: int = 15) -> list[tuple[str, pd.DataFrame]]:
        """Return (title, table) pairs for sizes, statistics, classes and the `number` top-scoring tokens."""
        facts = [(name, _number(x)) for name, x in self.facts.items()]
        sizes = pd.DataFrame(facts, columns=["what", "value"])
        laid = [("Sizes", sizes), (f"Correlations with importance over {self.over}", _quantities(self))]
        if len(self.by_class):
            laid.append(("Correlations of E·v with importance for each class", _by_class(self)))
        for h in self.heads:
            of_head = self.tokens[self.tokens["head"] == h]
            # For each token, keep only the row of the class with the largest α.
            tokens = of_head.sort_values("alpha", ascending=False, kind="stable").drop_duplicates("id")
            top = tokens.sort_values(["Ep", "id"], ascending=[False, True])
            chosen = tokens[tokens["selected"] > 0].sort_values(["selected", "id"], ascending=[False, True])
            where = f", attention head {h}" if len(self.heads) > 1 else ""
            top, chosen = (_display_tokens(rows.head(number), self) for rows in (top, chosen))
            laid += [(f"Tokens with the largest E·p{where}", top)]
            laid += [(f"Tokens that most sequences select{where}", chosen)]
            if len(self.by_class):
                most = _of_classes(of_head, self)
                laid.append((f"Tokens with the largest E·v for each class{where}", most))
        return laid

    def figure(self, head: int = 0) -> RenderedFigure:
        """Plot E·v and E·p of each token against its posterior difference, for one attention head.

        Raises:
            InputError: the attention head does not exist.
        """
        if head not in self.heads:
            raise InputError(f"head: must be between 0 and {len(self.heads) - 1}, got {head}")
        tokens = self.tokens[self.tokens["head"] == head].assign(cell=0, seed=0, phase="model")
        # The drawing function expects the results of a run with one cell and one phase.
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
        """Return a self-contained HTML page with verdicts, figures, and tables that list `number` tokens."""
        return _html(self, number, [self.figure(h) for h in self.heads])

    def write(self, directory: str | Path, number: int = 15) -> list[Path]:
        """Write diagnosis.html, diagnosis.md, tokens.csv and one figure per attention head.

        Args:
            directory: the folder, which is created if it does not exist.
            number: number of tokens to list on the page.

        Returns:
            The paths of the files.

        Raises:
            RunError: the folder cannot be written.
        """
        drawn = [self.figure(h) for h in self.heads]
        names = dict(enumerate(self.class_names))
        contents = {
            "diagnosis.html": _html(self, number, drawn).encode(),
            "diagnosis.md": _markdown(self, number, drawn).encode(),
            "tokens.csv": self.tokens.replace({"class": names}).to_csv(index=False).encode(),
            **{f"{each.name}.svg": each.svg() for each in drawn},
        }
        return write_contents(directory, contents)

    def __repr__(self) -> str:
        return "\n".join([f"{type(self).__name__} over {self.over}", *self.verdicts])

    def _repr_html_(self) -> str:
        return framed("Diagnosis", self.html())


def diagnose(
    embedding: ArrayLike,
    query: ArrayLike,
    head: ArrayLike,
    corpus: Corpus,
    *,
    tokens: Sequence[str] | None = None,
    min_count: int = 50,
    important: float = 0.5,
    draws: int = 200,
    resampled: int = 1000,
    seed: int = 0,
) -> Diagnosis:
    """Compare E·v and E·p of a trained model with the importance of tokens in a corpus.

    The importance of a token is measured by α and by its posterior difference. E·v should increase with both,
    and E·p with their absolute values, because attention selects tokens that are evidence for any class. For
    K > 2 classes, E·v_k is compared with the importance for class k, and E·p with the largest absolute
    importance over the classes. Each of the H attention heads is measured separately.

    The null band contains the statistics of 95 % of random models with E_s, p ~ N(0, I/d) and v uniform on
    the sphere. The healthy reference for E·v is its change after one gradient step on E in a random model,
    (E¹ - E⁰)·v.

    Args:
        embedding: E, (V, d) float; row s is the embedding of token s in the corpus.
        query: p, (d,) float, or (H, d) for H attention heads. For keys W E_s and a query x, pass Wᵀ x.
        head: v, (d,) or (d, K) float, or (K, d) as in PyTorch's linear layers; a square array is
            interpreted as (d, K). If two columns are given for two classes, they are replaced by their
            difference. With a leading axis of length H, each attention head has a separate v.
        corpus: n labelled sequences over V tokens.
        tokens: V token names; defaults to the ids.
        min_count: minimum number of occurrences for a token to be included in the statistics.
        important: minimum |posterior difference| of an important token. The token must also occur at least
            `min_count` times.
        draws: number of random models.
        resampled: number of bootstrap resamples of tokens.
        seed: random seed.

    Raises:
        InputError: shapes do not match or are ambiguous, arrays contain NaN or inf, or fewer than three
            tokens are frequent enough.

    Source:
        Figures 1-3, Lemma 4.1 and Section 4 of arXiv 2505.17282.

    Example:
        >>> from jaxattn.lab.diagnosis import diagnose
        >>> corpus = ja.data.assumption1(
        ...     jax.random.key(0), vocab_size=12, relevant=4, length=4, sequences=64
        ... )
        >>> params = ja.models.one_layer.init(jax.random.key(1), vocab_size=12, dim=64)
        >>> params = ja.dynamics.one_step(params, corpus, step_size=100.0)
        >>> found = diagnose(params.E, params.p, params.v, corpus, min_count=1, draws=5, resampled=5)
        >>> found.over
        '12 of 12 tokens: those that occur at least 1 times (min_count)'
    """
    model = read_weights(embedding, query, head, corpus)
    if tokens is not None and len(tokens) != len(model.embedding):
        raise InputError(
            f"tokens: {len(tokens)} names for V = {len(model.embedding)} tokens; expected one name per token"
        )
    if draws < 1 or resampled < 1:
        raise InputError(f"draws, resampled: both must be at least 1, got {draws} and {resampled}")
    settings = Settings(min_count, important, draws, resampled, seed, np.asarray(embedding).dtype)
    found = measure_model(model, corpus, tokens, settings)
    return Diagnosis(**vars(found))


def _html(found: Diagnosis, number: int, drawn: list[RenderedFigure]) -> str:
    heading = "Does the model know what is important?"
    tables = [(title, table, _keys(table)) for title, table in found.tables(number)]
    return summary_page("Diagnosis", heading, found.verdicts, drawn, tables, _note(found), toned=True)


def _markdown(found: Diagnosis, number: int, drawn: list[RenderedFigure]) -> str:
    page = ["# Diagnosis", "\n".join(f"- {verdict}" for verdict in found.verdicts)]
    page += [f"![{each.title}]({each.name}.svg)\n\n{each.caption}" for each in drawn]
    page += [f"## {title}\n\n{layout.markdown(table)}" for title, table in found.tables(number)]
    return "\n\n".join([*page, _note(found)]) + "\n"


def _note(found: Diagnosis) -> str:
    if len(found.heads) == 1:
        return NOTE
    return f"{NOTE} With {len(found.heads)} attention heads, one in twenty is outside a null band by chance."


def _keys(table: pd.DataFrame) -> int:
    return max(1, sum(name in ("head", "class", "quantity", "statistic") for name in table.columns[:4]))


def _quantities(found: Diagnosis) -> pd.DataFrame:
    rows = found.quantities
    if len(found.heads) == 1:
        return _with_intervals(rows, ["quantity", "statistic"])
    # List rows for E·v only once if all heads share them.
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
    # A line of the verdicts gives the reason why rows are not defined.
    rows = rows[rows["verdict"] != "not defined"]
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
    order = of_head.sort_values(["class", "Ev", "id"], ascending=[True, False, True])
    return _display_tokens(order.groupby("class").head(number), found)


def _display_tokens(tokens: pd.DataFrame, found: Diagnosis) -> pd.DataFrame:
    named = with_classes(tokens, found.class_names)
    named = named.rename(columns={"posterior_difference": "posterior difference", "Ep": "E·p", "Ev": "E·v"})
    alone = found.tokens["class"].nunique() < 2 and not found.class_names
    return named.drop(columns=["id", "head", *(["class"] if alone else [])]).reset_index(drop=True)


def _rows(frame: pd.DataFrame, *columns: str) -> list[tuple[float, ...]]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


def _number(x: Any) -> str:
    return f"{x:,}" if isinstance(x, int) else format_number(x)
