"""What the paper's figures mean for somebody's own model: does E·v know importance, does E·p select it?

Whatever classifier E, p and v come from, its numbers are held against two references on the same corpus: the
null band, what random E, p and v of that shape give, and the healthy reference, what one gradient step gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus
from jaxattn.diagnosis import page
from jaxattn.diagnosis.inputs import read_weights
from jaxattn.diagnosis.measure import Measured, Settings, measure
from jaxattn.results.drawn import Drawn


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
        return page.tables(self, number)

    def figure(self, head: int = 0) -> Drawn:
        """Draw E·v and E·p of every token against its posterior difference, as in the paper's Figure 3.

        Args:
            head: which attention head.

        Raises:
            InputError: no such attention head.
        """
        return page.figure(self, head)

    def html(self, number: int = 15) -> str:
        """Write the page: verdicts, figures and tables, with all that it shows.

        Args:
            number: how many tokens to list, of each attention head.
        """
        return page.html(self, number)

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
        return page.write(self, Path(directory), number)

    def __repr__(self) -> str:
        return "\n".join([f"{type(self).__name__} over {self.over}", *self.verdicts])

    def _repr_html_(self) -> str:
        return page.framed(self)


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
