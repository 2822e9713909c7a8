"""Tables of tokens at the end of a phase, and the tokens with the largest scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.results.run import Run


@dataclass(frozen=True)
class Tokens:
    """Tokens of one cell at the end of one phase.

    Attributes:
        table: columns id, token, count, class, alpha, posterior_difference, Ep and Ev.
        phase: the phase.
        seeds: number of seeds in the table.
        averaged: True if Ep and Ev are means over seeds with the same corpus; otherwise each seed has
            separate rows.
        names: class names, with the negative class first for two classes; may be empty.
    """

    table: pd.DataFrame
    phase: str
    seeds: int
    averaged: bool
    names: tuple[str, ...] = ()

    @property
    def classes(self) -> list[int]:
        """Return the classes that have rows. For two classes, this is only class 1."""
        return sorted(int(label) for label in self.table["class"].unique())

    def name(self, label: int) -> str:
        """Return the name of a class, or its index if it has no name."""
        return self.names[label] if label < len(self.names) else str(label)

    @property
    def signs(self) -> str:
        """Return a caption phrase that names the positive and the negative class.

        Return "" if the classes have no names or if there are more than two.
        """
        if len(self.classes) > 1 or not self.names:
            return ""
        return f" (positive: class {self.name(1)}, negative: class {self.name(0)})"

    @property
    def over_seeds(self) -> str:
        """Return a caption phrase that explains how seeds are combined."""
        if self.seeds == 1:
            return "one seed"
        return f"averaged over {self.seeds} seeds" if self.averaged else f"{self.seeds} seeds pooled"


def final_tokens(results: Run, *, phase: str | None = None, cell: int = 0, average: bool = True) -> Tokens:
    """Return the tokens of one cell at the end of one phase.

    Args:
        results: a results folder.
        phase: name of the phase; None selects the last one.
        cell: index of the cell.
        average: True to average Ep and Ev over seeds if all seeds have the same corpus. Otherwise each seed
            has separate rows.

    Returns:
        The tokens that occur and have finite Ep and Ev, excluding failed seeds.

    Raises:
        InputError: there is no token table, no token has finite values, or the cell or phase is unknown.
    """
    if results.tokens.empty:
        raise InputError(
            f"{results.directory}: no token table, because no phase has ended or the model has no "
            "token scores and values; define scores_and_values in the model"
        )
    results.settings(cell)
    recorded = [str(name) for name in results.tokens["phase"].unique()]
    phase = recorded[-1] if phase is None else phase
    if phase not in recorded or phase not in results.phases:
        raise InputError(f"phase {phase!r}: token tables exist only for {', '.join(recorded)}")
    tokens = results.tokens[(results.tokens["phase"] == phase) & (results.tokens["cell"] == cell)]
    finite = np.isfinite(tokens[["posterior_difference", "Ep", "Ev"]].to_numpy(float)).all(axis=1)
    tokens = tokens[finite & ~tokens["seed"].isin(_failed(results, cell, phase)).to_numpy()]
    if tokens.empty:
        raise InputError(f"cell {cell}, phase {phase!r}: no token has finite values; every seed failed")
    seeds = tokens["seed"].nunique()
    averaged = average and seeds > 1 and _one_corpus(tokens)
    if averaged:
        groups = tokens.groupby(["id", "class"], sort=False, as_index=False)
        tokens = groups.agg(
            dict.fromkeys(("token", "count", "alpha", "posterior_difference"), "first")
            | {"Ep": "mean", "Ev": "mean"}
        )
    return Tokens(tokens.reset_index(drop=True), phase, seeds, averaged, results.class_names(cell))


def top(tokens: Tokens, *, count: int = 20, min_count: int = 1) -> pd.DataFrame:
    """Return the tokens with the largest E·p in descending order.

    Args:
        tokens: the tokens for one cell and phase. If each seed has its own corpus, only the first seed is
            used.
        count: number of tokens.
        min_count: minimum number of occurrences of a token.

    Returns:
        One row per token. For K > 2 classes, this is the row for the class with the largest α.

    Raises:
        InputError: no token occurs at least `min_count` times.
    """
    table = tokens.table[tokens.table["count"] >= min_count]
    if table.empty:
        maximum = tokens.table["count"].max()
        raise InputError(
            f"min_count = {min_count}: no token occurs more than {maximum} times; use a smaller value"
        )
    if tokens.seeds > 1 and not tokens.averaged:
        table = table[table["seed"] == table["seed"].min()]
    if len(tokens.classes) > 1:
        table = table.sort_values("alpha", ascending=False, kind="stable").drop_duplicates("id")
    return table.sort_values(["Ep", "id"], ascending=[False, True]).head(count).reset_index(drop=True)


def with_classes(best: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return a table from `top` whose column "class" names the class for which each token is evidence.

    `names` contains the class names, with the negative class first for two classes; if it is empty, the table
    is returned unchanged. For two classes, the sign of α determines the class, and tokens with α = 0 get "–".
    """
    if len(names) == 2:
        sign = np.sign(best["alpha"].to_numpy(float)).astype(int)
        return best.assign(**{"class": np.array([names[0], "–", names[1]], object)[sign + 1]})
    return best.assign(**{"class": best["class"].map(dict(enumerate(names)))}) if names else best


def named_tokens(results: Run) -> bool:
    """Return True if tokens have names, as in a text corpus, rather than only ids."""
    tokens = results.tokens.drop_duplicates("id")
    return bool((tokens["token"].astype(str) != tokens["id"].astype(str)).any())


def _failed(results: Run, cell: int, phase: str) -> list[int]:
    before = results.phases[: results.phases.index(phase) + 1]
    failures = results.manifest.get("failures", [])
    return [entry["seed"] for entry in failures if entry["cell"] == cell and entry["phase"] in before]


def _one_corpus(tokens: pd.DataFrame) -> bool:
    groups = tokens.groupby(["id", "class"])[["count", "alpha", "posterior_difference"]]
    return bool((groups.nunique(dropna=False) == 1).all(axis=None))
