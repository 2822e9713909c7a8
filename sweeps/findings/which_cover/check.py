"""Covers that full training converges to: how many runs follow the law, and how their covers compare."""

import numpy as np
from ends import SCALE, STEP, WITHIN, cells, exceptions, powers, runs

from jaxattn.lab.books import around, at_least, mean, share

# An integer program proves that no cover is shorter, so any exception would be an error.
SURE, MOST = at_least(0.99), at_least(0.9)


def check(results):
    """Measure the shares of runs that end on a cover, follow the law, and order their tokens by α or -α."""
    found = runs(results["study"])
    arrived = found["came_to_end"] == 1
    covers = arrived & (found["cover_share"] == 1)
    one_label = found["follows_alpha"] == 1
    single = covers & found["block"].str.startswith("one")
    small = single & (found[STEP] == 0) & (found[SCALE] <= 0.1)
    tiny = single & (found[SCALE] == 0.01)
    by_s = found["winner"] == found["variance_sign"]
    decided = one_label & (found["variance_sign"] != 0)
    of_cover = "share of the runs with a cover in which"
    order = "share of covers with scores in the order of α or -α"
    small_text = "scale at most 0.1, scores in the order of α or -α: share in which"
    tiny_text = "scale 0.01, scores in the order of α or -α"

    def runs_with(id, text, hit, known, expected=None):
        return share(id, text, hit, known=np.broadcast_to(known, hit.shape), expected=expected, unit="run")

    return [
        runs_with("arrived", "share of runs that reach the final loss of the flow", arrived, True),
        runs_with(
            "covers",
            "share of the completed runs in which the tokens with the largest scores are a cover",
            covers,
            arrived,
            SURE,
        ),
        runs_with(
            "lawful",
            f"{of_cover} E·v is within 1 % of the law on every token of the cover",
            found["cover_error"] <= WITHIN,
            covers,
            SURE,
        ),
        runs_with(
            "alone",
            f"{of_cover} every sequence has attention above 0.99 on one token",
            found["cover_attention"] >= 0.99,
            covers,
        ),
        runs_with(
            "not_smaller",
            "share of covers that are not smaller than a shortest cover",
            found["cover_size"] >= found["shortest_cover"],
            covers,
            SURE,
        ),
        runs_with(
            "shortest",
            "share of covers that are shortest covers",
            found["cover_size"] == found["shortest_cover"],
            covers,
        ),
        runs_with(
            "small.order",
            f"scale at most 0.1, one relevant token, no step on E: {order}",
            one_label,
            small,
            MOST,
        ),
        runs_with(
            "small.sign_of_s",
            f"{small_text} the sign of S = Σ y Var α determines the label",
            by_s,
            small & decided,
            MOST,
        ),
        runs_with(
            "small.start",
            f"{small_text} the initialisation determines the label",
            found["winner"] == found["start_sign"],
            small & decided,
        ),
        runs_with(
            "tiny.order",
            f"scale 0.01, with or without a step on E: {order}",
            one_label,
            tiny,
        ),
        runs_with(
            "tiny.sign_of_s",
            f"{tiny_text}: share in which the sign of S determines the label",
            by_s,
            tiny & decided,
            MOST,
        ),
        runs_with(
            "tiny.clear_sign_of_s",
            f"{tiny_text}, |S| above 2 % of the mean variance: share in which the sign of S determines the "
            "label",
            by_s,
            tiny & one_label & (found["variance_lead"].abs() > 0.02),
        ),
        mean(
            "exponent",
            "exponent of log(1/L) in the distance to the law",
            powers(results["study"])[covers.to_numpy()],
            expected=around(-1.0, 0.1),
            published="-1",
            unit="run",
        ),
    ]


def tables(results):
    """Return the means of each cell, and the runs farthest from the law."""
    found = runs(results["study"])
    names = {SCALE: "scale", STEP: "η0 of the step on E"}
    far = exceptions(found).rename(columns=names)
    return {"Every cell": cells(found), "Runs farthest from the law": far}
