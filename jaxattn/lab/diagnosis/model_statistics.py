"""Statistics of one model: correlations of its scores and values with token importance, and fractions."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.fractions import bin_numbers, tied
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import token_statistics
from jaxattn.lab.results.correlations import BINS, Binned, Floats, correlations, quantile_bins, quantile_edges
from jaxattn.theory import Scores, selection

# Number of tokens below which a lower min_count is suggested.
ENOUGH = 20


@dataclass(frozen=True)
class TokenImportance:
    """Token importance in a corpus.

    Attributes:
        count: (V,); number of occurrences.
        alpha, difference: (V, C); α and posterior difference; C = 1 for two classes, and C = K for K > 2.
        used: (V,) bool; True for tokens that are frequent enough for the statistics.
        important: (V,) bool; True for important tokens.
    """

    corpus: Corpus
    count: Floats
    alpha: Floats
    difference: Floats
    used: NDArray[np.bool_]
    important: NDArray[np.bool_]

    def of_class(self, k: int) -> "TokenImportance":
        """Return the importance for class k alone."""
        return replace(self, alpha=self.alpha[:, k : k + 1], difference=self.difference[:, k : k + 1])

    def axes(self) -> list[list[Binned]]:
        """Return the importance values, with their bins, for each of the four `PAIRS`.

        For E·v there is one entry per class. For E·p there is a single entry, with the largest absolute
        values over the classes.
        """
        alpha, difference = self.alpha[self.used], self.difference[self.used]
        largest_alpha, largest = (np.abs(x).max(axis=1) for x in (alpha, difference))
        signed, unsigned = np.linspace(-1, 1, BINS + 1), np.linspace(0, 1, BINS + 1)
        return [
            [_quantiles(x) for x in alpha.T],
            [Binned(x, bin_numbers(x, signed, dtype="float64")) for x in difference.T],
            [_quantiles(largest_alpha)],
            [Binned(largest, bin_numbers(largest, unsigned, dtype="float64"))],
        ]


def _quantiles(x: Floats) -> Binned:
    return Binned(x, quantile_bins(x, quantile_edges(x, BINS), "float64"))


def token_importance(corpus: Corpus, min_count: int, important: float) -> TokenImportance:
    """Compute the importance of all tokens, in float64.

    Args:
        corpus: the corpus.
        min_count: number of occurrences below which tokens are not used.
        important: posterior difference from which tokens are important.

    Raises:
        InputError: fewer than three tokens are frequent enough.
    """
    with backend.precision("float64"):
        found = token_statistics(corpus)
        large = np.asarray(found.important(important, min_count))
    count, alpha, difference = map(np.asarray, (found.count, found.alpha, found.posterior_difference))
    used = count >= max(min_count, 1)
    if used.sum() < 3:
        raise InputError(
            f"min_count: only {int(used.sum())} tokens occur at least {min_count} times, but three "
            f"are required; lower min_count to {suggested_count(count) or 1}"
        )
    return TokenImportance(corpus, count, tied(alpha, "float64"), difference, used, large)


def suggested_count(count: Floats) -> int:
    """Return the largest number of occurrences that at least twenty tokens, or else all tokens, reach.

    Args:
        count: (n,); number of occurrences of each token.

    Returns:
        The number, or 0 if no token occurs.
    """
    occurring = np.sort(count[count > 0])[::-1]
    return int(occurring[:ENOUGH][-1]) if len(occurring) else 0


def parts(importance: TokenImportance, values: Floats) -> list[tuple[TokenImportance, Floats]]:
    """Return the data to correlate: all classes together and, if K > 2, each class separately."""
    every = values.shape[1]
    alone = [(importance.of_class(k), values[:, k : k + 1]) for k in range(every if every > 1 else 0)]
    return [(importance, values), *alone]


def token_correlations(importance: TokenImportance, scores: Floats, values: Floats) -> Floats:
    """Compute the correlations, (1 or 1 + K, 16), with one row for each entry of `parts`."""
    once = np.ones((1, int(importance.used.sum())))
    return np.stack(
        [
            pair_correlations(part.axes(), scores[importance.used], x[importance.used], once)[:, 0]
            for part, x in parts(importance, values)
        ]
    )


def selected_fractions(
    importance: TokenImportance, scores: Floats, precision: Any
) -> tuple[list[float], NDArray[np.bool_]]:
    """Compute how often important tokens are selected, and the mask of selected entries in the bags.

    The list contains the fraction of sequences that select an important token, and the fraction in which an
    important token ties for the highest score.
    """
    # Which tokens are selected depends only on the scores, so embeddings of dimension 1 are enough.
    unit = np.ones(1, np.float64 if precision == np.float64 else np.float32)
    chosen = selection(unit, Scores(scores[:, None], importance.corpus))
    shares = [float(np.asarray(x).mean()) for x in chosen.selects(importance.corpus, importance.important)]
    if not importance.important.any():
        shares = [float("nan")] * 2
    decided = importance.corpus.bags.spread(chosen.decided(importance.corpus))
    return shares, np.asarray(chosen.mask & decided)


def pair_correlations(axes: list[list[Binned]], scores: Floats, values: Floats, weights: Floats) -> Floats:
    """Compute the correlations for the four `PAIRS` and R weight vectors, averaged over classes, (16, R)."""
    sides = [values.T, values.T, scores[None], scores[None]]
    return np.concatenate(
        [
            np.mean([correlations(x, y, weights) for x, y in zip(each, side, strict=True)], axis=0)
            for each, side in zip(axes, sides, strict=True)
        ]
    )
