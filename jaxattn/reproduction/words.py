"""The scoreboard in words: what every claim says, how much chance there is in it, and the page of it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pandas as pd

from jaxattn.claims.rows import DECIDING_SEEDS, REQUIRED, Row
from jaxattn.claims.rows import __doc__ as rule
from jaxattn.results.intervals import LEVEL
from jaxattn.results.tables import markdown

# By claim, in the order of the paper.
STATEMENTS: Mapping[str, str] = MappingProxyType(
    {
        "L4.1": "After one gradient step on the embeddings, a token's value E·v has moved by η0/2 times α, "
        "which says how much more often it occurs under one label than under the other, up to an error of "
        "order 1/√d.",
        "MC": "The same for more than two classes: each class's value moves by that class's α.",
        "L4.2": "When p is trained by gradient flow, its norm grows without bound, like the logarithm of "
        "time: attention becomes hard, and p comes to rest nowhere.",
        "T4.3": "The direction of p tends to the max-margin direction of the tokens that it selects: of all "
        "directions the one that lifts their scores furthest above those of all others.",
        "L4.4/4.5": "After a large enough step on the embeddings, and long enough training of p, every "
        "sequence attends to its important token alone.",
        "V": "If the head v is trained together with p, the same tokens are selected, but p tends to the "
        "direction of a relaxed problem, in which some sequences no longer count.",
        "MR": "With several relevant tokens in a sequence, at least one of them is selected.",
    }
)
PARTS = ((True, "What the theory promises"), (False, "Where the theory promises nothing"))


def too_few(seeds: int) -> str:
    """Say that so few seeds decide no yes/no row, or nothing."""
    if seeds >= DECIDING_SEEDS:
        return ""
    return (
        f"{seeds} seeds are too few for yes/no rows to hold: the whole interval of the share has to lie "
        f"above {REQUIRED:g}, which takes {DECIDING_SEEDS} seeds or more; with {seeds} they can only fail"
    )


def chances(rows: Sequence[Row]) -> str:
    """Say how many rows are judged, and how many of their intervals miss the truth by chance."""
    judged = [row for row in rows if row.tolerance]
    promised, missed = sum(row.claim.promised for row in judged), (1 - LEVEL) * len(judged)
    return (
        f"{len(rows)} rows, {len(judged)} of them judged against a tolerance ({promised} promised). At 95 % "
        f"up to {missed:.1f} of the {len(judged)} intervals are expected to miss their number by chance "
        "alone; rows of the same runs miss together."
    )


def page(rows: Sequence[Row], table: pd.DataFrame, made: Mapping[str, str]) -> str:
    """Write the scoreboard as a page of Markdown.

    Args:
        rows: the rows.
        table: the same, laid out for reading.
        made: how the page was made: command, date, versions.

    Returns:
        The page: title, how it was made, what the claims say, the tables, how to read them.
    """
    own = {row.claim.name for row in rows}
    seeds = max((row.seeds + row.missing for row in rows), default=0)
    few = too_few(seeds)
    parts = [
        "# The claims of the theory, measured",
        "Statements of arXiv 2505.17282 and of its public review thread, measured on exact flows and single "
        "steps in float64 with many seeds, and judged by one rule.",
        "\n".join(f"- {name}: {text}" for name, text in made.items()),
        chances(rows) + (f" {few[0].upper()}{few[1:]}." if few else ""),
        "## What the claims say",
        "\n".join(f"- **{name}**: {text}" for name, text in STATEMENTS.items() if name in own),
    ]
    for promised, title in PARTS:
        part = table[[row.claim.promised == promised for row in rows]]
        if len(part):
            parts += [f"## {title}", markdown(part)]
    return "\n\n".join([*parts, "## How to read this", (rule or "").strip(), READING]) + "\n"


READING = """\
Settings: V tokens in the vocabulary, n sequences of T tokens, embeddings of dimension d; η0 is the size of
the one step on the embeddings before p is trained. In corpora of kind assumption1 every sequence has exactly
one relevant token; those of kind independent draw tokens one by one. A certificate is a proof by numbers: a
duality gap that bounds how far the computed max-margin direction is from the true one, and a primal
residual."""
