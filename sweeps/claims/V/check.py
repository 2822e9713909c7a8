"""Training the head v together with p: claims of the public review, and the relaxed max-margin limit."""

import numpy as np

from jaxattn.lab.books import at_least, cells, mean, round_up, share, worst
from jaxattn.lab.results.labels import brief

SELECTION = "training v together with p does not change the selected tokens"
RELAXED = "p/‖p‖ converges to the direction of p_relax, as on the regularisation path of arXiv 2306.13596"
SAME = "training v together with p does not change the limit direction of p"
HEAD = "v/‖v‖ converges to the max-margin head of the selected tokens"
# The joint flow ends at ‖p‖ = 1e4, where 1 - cos is about 1e-7 or more.
CLOSE = 1e-6


def check(results):
    """Measure whether training v changes the limit of p.

    The weight of a sequence in the loss vanishes unless it is on the margin of the max-margin v. In all other
    sequences, the selected token needs only the highest score, not a margin, so p tends to the relaxed
    direction p_relax. That p keeps the limit p_mm of training it alone is a claim of the review thread; it is
    not in the paper.
    """
    (before,), (cell,) = cells(results["base"]), cells(results["joint"])
    until = cell["phases.together.until_norm"]
    # In sequences off the margin of v_mm, the relevant token may lead by only a few nats, so test only the
    # sign of the margins.
    margins = before.last("relevant_margin"), cell.last("relevant_margin")
    norm, names = cell.last("p_norm"), ("relaxed_certified", "unrelaxed_one_minus", "head_one_minus")
    there = norm >= until * (1 - 1e-9)
    ends = ("_distance", "_cosine", "_cosine")
    relaxed, apart, head = (cell.last(f"{a}{b}") for a, b in zip(names, ends, strict=True))
    setting = f"{cell.setting}; flow of p and v to ‖p‖ = {brief(until)}"
    about = {"setting": setting, "why": cell.failure_reason or before.failure_reason}
    mismatch = round_up(np.nanmax(cell.last("mismatch")))

    def near(id, what, away, **more):
        text = f"seeds with 1 - cos ≤ {brief(CLOSE)} between {what}"
        known = np.isfinite(away) & np.isfinite(norm)
        return share(id, text, there & (away <= CLOSE), known=known, expected=at_least(0.9), **more, **about)

    proof = f"{worst(relaxed)}{cell.certificate('relaxed_')}"
    same = {"claim": SAME, "source": "public review thread"}
    return [
        share(
            "selection",
            "seeds in which the important token has the largest score in every sequence, as for p alone",
            (margins[0] > 0) & (margins[1] > 0),
            known=np.isfinite(margins).all(axis=0),
            expected=at_least(0.9),
            basis="theory",
            claim=SELECTION,
            certificate=f"‖p‖ = {brief(until)} in {there.sum()} of {len(there)}",
            **about,
        ),
        near("relaxed", "p and p_relax", relaxed, claim=RELAXED, certificate=proof, basis="theory"),
        near("same", "p and p_mm", apart, **same),
        mean("distance", "1 - cos between p and p_mm", apart, between=(0.0, 2.0), **same, **about),
        mean(
            "tight",
            "share of sequences on which v_mm is tight",
            cell.last("relaxed_support"),
            between=(0.0, 1.0),
            **same,
            **about,
        ),
        near(
            "head",
            "v and v_mm",
            head,
            claim=HEAD,
            basis="beyond",
            certificate=f"directly and with v slaved dp/dt differs by {mismatch}",
        ),
    ]
