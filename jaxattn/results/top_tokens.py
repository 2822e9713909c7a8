"""Figure: the tokens that attention prefers."""

from typing import Annotated

import msgspec
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from jaxattn.results.drawn import Drawn
from jaxattn.results.labels import VALUES, file_name, minus, shown
from jaxattn.results.numbers import format_number
from jaxattn.results.run import Run
from jaxattn.results.style import BLUE, GREY, INK, RED, SOFT, WIDTH, colours, legend_below, style
from jaxattn.results.tokens import at_end, top

# A line each, on one figure.
MOST = 500


def top_tokens(
    results: Run,
    *,
    phase: str | None = None,
    cell: int = 0,
    number: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = 20,
    min_count: int = 1,
) -> Drawn:
    """Draw the tokens with the largest E·p as bars, coloured by the sign of alpha (K > 2: by their class).

    Args:
        results: a results folder.
        phase: the phase at whose end tokens are taken; the last one if None.
        cell: which cell.
        number: how many tokens.
        min_count: leave out tokens that occur less often.

    Returns:
        The figure.

    Raises:
        InputError: an unknown phase or cell, or no tokens.
    """
    tokens = at_end(results, phase=phase, cell=cell)
    best = top(tokens, count=number, min_count=min_count)
    several = len(tokens.classes) > 1
    if several:
        palette = dict(zip(tokens.classes, colours(len(tokens.classes), ordered=False), strict=True))
        shade = [palette[k] for k in best["class"]]
        legend = {
            f"class {shown(tokens.name(k))}": palette[k] for k in tokens.classes if (best["class"] == k).any()
        }
    else:
        positive, negative = (
            [f"class {shown(tokens.name(k))}" for k in (1, 0)]
            if tokens.names
            else ["positive token", "negative token"]
        )
        signs = {1: (positive, BLUE), -1: (negative, RED), 0: ("irrelevant token", GREY)}
        sign = np.sign(best["alpha"].to_numpy(float)).astype(int)
        shade = [signs[k][1] for k in sign]
        legend = {name: colour for k, (name, colour) in signs.items() if (sign == k).any()}
    scores, label_of_scores = results.score_names(cell)
    names = [shown(str(token)) for token in best["token"]]
    columns = {
        label_of_scores: [format_number(value) for value in best["Ep"]],
        VALUES["Ev"]: [format_number(value) for value in best["Ev"]],
        r"$\alpha_s$": [format_number(value) for value in best["alpha"]],
        "count": [f"{value:,}" for value in best["count"]],
    }
    with style():
        figure = Figure(figsize=(WIDTH, 0.9 + 0.19 * len(best)), layout="constrained")
        ax, texts = figure.subplots(1, 2, width_ratios=(1.25, 1), sharey=True)
        y = np.arange(len(best))
        ax.barh(y, best["Ep"], height=0.72, color=shade)
        ax.set_yticks(y, names)
        ax.set_ylim(len(best) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(label_of_scores)
        ax.axvline(0, color=SOFT, linewidth=0.6)
        texts.set_axis_off()
        texts.set_xlim(0, len(columns))
        for column, (head, cells) in enumerate(columns.items()):
            look = {"ha": "right", "va": "center", "fontsize": 8.5}
            texts.text(column + 0.9, -0.9, head, color=INK, **(look | {"va": "bottom"}))
            for row, text in enumerate(cells):
                texts.text(column + 0.9, row, minus(text), color=SOFT, **look)
        handles = [Patch(color=colour, label=name) for name, colour in legend.items()]
        legend_below(figure, handles)
    whose = "class with the largest α" if several else "sign of α"
    first = " of the first seed" if tokens.seeds > 1 and not tokens.averaged else ""
    number_of_seeds = "one seed" if first else tokens.over_seeds
    often = f" of those that occur at least {min_count} times" if min_count > 1 else ""
    return Drawn(
        file_name(
            "top_tokens", tokens.phase, *([f"cell{cell}"] if len(results.manifest["cells"]) > 1 else [])
        ),
        "Tokens that attention prefers",
        f"The {len(best)} tokens{first} with the largest {scores}{often} after phase {tokens.phase}"
        f"{results.cell_words(cell)}, {number_of_seeds}; colour: {whose}.",
        figure,
    )
