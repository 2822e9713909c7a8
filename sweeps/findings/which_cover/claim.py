"""Check that training E, p and v ends on a cover, and that small initialisations order scores by α or -α."""

import numpy as np

from jaxattn.lab.books import at_least, cells, round_up, share, slug

LAW = "the tokens with the largest scores are a cover, and their values E·v converge to y ‖v‖²/√r"
ORDER = "from a small initialisation, scores order the tokens by α or -α, and the sign of S determines which"
SHORTEST = "a small initialisation leads to a cover of the smallest possible size"
# A seed follows the set-cover law if the relative distance of E·v from the law is at most this value.
LAWFUL = 0.01
METRICS = (
    *("came_to_end", "cover_share", "cover_error", "cover_size", "shortest_cover"),
    *("follows_alpha", "winner", "variance_sign"),
)


def check(results):
    """Measure how often training ends on a cover as predicted, and how often scores have the order of ±α.

    Source:
        docs/notes/which_cover.md.
    """
    for cell in cells(results["claim"]):
        of = {name: cell.last(name, "all") for name in METRICS}
        known, came = np.isfinite(of["cover_error"]), of["came_to_end"] == 1
        lawful = came & (of["cover_share"] == 1) & (of["cover_error"] <= LAWFUL)
        # The theory makes no prediction for S = 0.
        label_of_s = (of["winner"] == of["variance_sign"]) | (of["variance_sign"] == 0)
        largest = round_up(of["cover_error"][known].max(initial=0))
        scale, end = cell["model.init.E.scale"], -cell["phases.all.until_log_loss"]
        relevant, id = cell["data.relevant"], slug(cell.name) or "small"
        setting = f"{cell.data}, R = {relevant}, d = {cell['model.dim']}, initialisation scaled by {scale:g}"
        about = {"known": known, "setting": setting, "why": cell.failure_reason}
        yield share(
            f"{id}.lawful",
            f"seeds that end with a cover and have E·v within {100 * LAWFUL:g} % of the law at "
            f"L = e^(-{end:,.0f})",
            lawful,
            expected=at_least(0.9),
            basis="theory",
            claim=LAW,
            certificate=f"distance ≤ {largest}, {came.sum()} of {len(came)} reach the end of the flow",
            **about,
        )
        yield share(
            f"{id}.ordered",
            "seeds with scores in the order of α or -α in all sequences, and with the label given by the "
            "sign of S",
            (of["follows_alpha"] == 1) & label_of_s,
            expected=at_least(0.9),
            basis="theory",
            claim=ORDER,
            **about,
        )
        yield share(
            f"{id}.shortest",
            "seeds that end with a shortest cover",
            of["cover_size"] == of["shortest_cover"],
            basis="beyond",
            claim=SHORTEST,
            **about,
        )
