"""Mixtures that p and v converge to: how many limits are certified, and how many the flow confirms."""

import numpy as np
import pandas as pd
from which_mixture import AGREES, runs

from jaxattn.lab.books import at_least, share, slug

NAMES = {
    "one relevant": "one relevant token",
    "two relevant": "two relevant tokens",
    "three relevant": "three relevant tokens",
    "independent": "independent tokens",
    "topics": "topic corpus",
}
# Corpora whose limits should be certified, and confirmed by the flow in log r.
CERTIFIED, CONFIRMED = ("two relevant", "three relevant"), ("one relevant", "two relevant", "three relevant")


def check(results):
    """Measure, for each corpus, the shares of certified, confirmed and refuted limits."""
    for block, own in runs(results["study"]).groupby("block", sort=False):
        name, id = NAMES.get(block, block), slug(block)
        certified, confirmed, wrong, followed = outcomes(own)
        yield share(
            f"{id}.certified",
            f"{name}: share of runs with a certified limit",
            certified,
            known=np.ones(len(own), bool),
            unit="run",
            expected=at_least(0.9) if block in CERTIFIED else None,
        )
        yield share(
            f"{id}.confirmed",
            f"{name}: share of the certified runs in which p converges to the limit",
            confirmed,
            known=certified,
            unit="run",
            expected=at_least(0.9) if block in CONFIRMED else None,
        )
        yield share(
            f"{id}.elsewhere",
            f"{name}: share of the certified runs, followed to log r = 1e4, in which p converges to another "
            "direction",
            wrong,
            known=certified & followed,
            unit="run",
        )


def outcomes(own):
    """Return whether each run is certified, confirmed by the flow in log r, refuted by it, and followed."""
    certified, followed = own["certified"] == 1, own["followed"] == 1
    confirmed = certified & followed & (own["far_error"] <= AGREES)
    return certified, confirmed, certified & followed & ~confirmed, followed


def tables(results):
    """Return the counts of each corpus, and the distances of p from the certified and relaxed directions."""
    rows = []
    for block, own in runs(results["study"]).groupby("block", sort=False):
        certified, confirmed, wrong, _ = outcomes(own)
        rows.append(
            {"corpus": block, "runs": len(own), "certified": certified.sum()}
            | {
                "converge to the certified limit": confirmed.sum(),
                "converge to another direction": wrong.sum(),
            }
            | {"without a certificate": (~certified).sum()}
            | {"median 1 - cos to p_relax": own["from_relaxed"].median()}
            | {"largest 1 - cos at log r = 1e4": own["far_error"].max()}
        )
    return {"Every corpus": pd.DataFrame(rows)}
