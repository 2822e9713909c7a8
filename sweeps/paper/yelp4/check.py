"""Four star classes on Yelp: signs and order of E·v_k along two possible x-axes of the published rows.

The x-axis of the published rows is not named, so both the posterior difference of the class and α are tried.
"""

import numpy as np
import pandas as pd
from bin_means import binned, tokens_of
from published_curves import YELP

from jaxattn.lab.books import at_least, cells, leave_one_out, sign_change, spearman
from jaxattn.lab.results.tokens import final_tokens

CORRELATION, PART = (-1.0, 1.0), (0.0, 1.0)
# Shares of bins with the right sign in the published rows.
SIGNS = {1: "0.947", 3: "1.00"}


def axes(cell, label):
    """Return E·v_k in the published range, over the whole range, and over α in bins of equal counts."""
    centres, tokens = YELP[label].centres, tokens_of(cell, label)
    step, count = centres[1] - centres[0], len(centres)
    near = np.linspace(centres[0] - step / 2, centres[-1] + step / 2, count + 1)
    alpha = np.maximum.accumulate(np.quantile(tokens["alpha"], np.linspace(0, 1, count + 1)))
    return (
        binned(tokens, "Ev", edges=near),
        binned(tokens, "Ev", edges=np.linspace(-1 / 3, 1, 21)),
        binned(tokens, "Ev", x="alpha", edges=alpha),
    )


def check(results):
    """Compare signs and order with the published rows, along both axes."""
    (cell,) = cells(results["study"])
    for label, curve in YELP.items():
        own, whole, by_alpha = axes(cell, label)
        name, k = curve.letters, label + 1

        def signs(id, text, bins, label=label, name=name, k=k):
            rows = sign_change(bins.mean, bins.centres)
            about = {"expected": at_least(0.9), "published": SIGNS[label]}
            return leave_one_out(
                f"{k}.{id}", f"{name}: share of bins with {text}", rows, between=PART, **about
            )

        def ranks(id, text, rows, least, published, name=name, k=k):
            about = {"expected": at_least(least), "published": published}
            words = f"{name}: Spearman correlation with {text}"
            return leave_one_out(f"{k}.{id}", words, rows, between=CORRELATION, **about)

        rising = spearman(whole.mean, whole.centres)
        equal = f"{len(curve.centres)} bins with equal numbers of tokens"
        yield signs("signs", "the sign of the posterior difference, within the published range", own)
        yield ranks("ranks", "the published rows", spearman(own.mean, curve.values), 0.7, "1")
        yield ranks("rise", "the posterior difference over its whole range", rising, 0.9, "rows rise")
        yield signs("signs_by_alpha", f"the sign of α, {equal}", by_alpha)
        ours = spearman(by_alpha.mean, curve.values)
        yield ranks("ranks_by_alpha", "the published rows, 19 bins over α", ours, 0.7, "1")


def tables(results):
    """Return the bin means along both axes, next to the published rows."""
    (cell,) = cells(results["study"])
    found = {}
    for label, curve in YELP.items():
        own, _, by_alpha = axes(cell, label)
        class_name = final_tokens(cell.run, phase=cell.last_phase).name(label)
        name, equal = curve.letters, f"{len(curve.centres)} bins with equal numbers of tokens"
        found[f"Class {class_name}, the published {name}"] = pd.DataFrame(
            {
                "posterior difference": [f"{x:.4f}" for x in curve.centres],
                "tokens per seed": own.tokens,
                f"{name}, measured": own.mean[0],
                f"{name}, published": curve.values,
                f"α, {equal}": [f"{x:.1e}" for x in by_alpha.centres],
                f"{name}, measured over α": by_alpha.mean[0],
            }
        )
    return found
