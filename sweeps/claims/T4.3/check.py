"""Theorem 4.3: the direction of p converges to a max-margin direction."""

import numpy as np
from directions import CLOSE_ELSEWHERE, is_close, place

from jaxattn.lab.books import around, at_least, cells, mean, powers, share, worst
from jaxattn.lab.results.labels import brief

DIRECTION = "p/‖p‖ converges to the max-margin direction of its own selection"
TIES = "p/‖p‖ converges to the certified limit of the flow, in which tokens may tie"
# At ‖p‖ = 1e6, 1 - cos is about 1e-11 for the margin of 0.28 of the base settings.
CLOSE = 1e-9
# Range of ‖p‖ in which the exponent is fitted: after the selected tokens stop changing and before the path
# ends.
FITTED = (1e3, 5e5)


def check(results):
    """Measure the limit in the theorem's setting, and in settings that it does not cover."""
    yield from converges(results["base"])
    yield from with_ties(results["independent"], "ties.independent")
    yield from with_ties(results["several"], "ties.several")
    yield from direction_elsewhere(results["beyond"], "beyond")
    yield from direction_elsewhere(results["independent"], "independent")


def converges(results):
    """Measure whether p/‖p‖ converges, and how fast: 1 - cos should decrease like ‖p‖^(-2)."""
    (cell,) = cells(results)
    norm, along = cell.path("p_norm"), cell.path("one_minus_cosine")
    low, high = FITTED
    power = powers(norm, np.where((norm >= low) & (norm <= high), along, np.nan))
    yield is_close(cell, "close", CLOSE, DIRECTION, expected=at_least(0.9), basis="theory")
    yield mean(
        "exponent",
        f"exponent of ‖p‖ in 1 - cos, ‖p‖ from {brief(low)} to {brief(high)}",
        power,
        expected=around(-2.0, 0.1),
        basis="theory",
        claim=DIRECTION,
        setting=cell.setting,
        why=cell.failure_reason,
        certificate=cell.certificate(),
    )


def with_ties(results, id):
    """Measure the convergence to the certified limit when tokens are tied.

    A seed with a certified finite limit counts as converged.

    Source:
        docs/notes/exact_flow_ties.md.
    """
    for number, cell in enumerate(cells(results)):
        away, certified = cell.last("limit_certified_distance"), cell.last("limit_feasible") == 1
        proof = cell.certificate("limit_")
        about = {"claim": TIES, "setting": cell.setting, "why": cell.failure_reason, "basis": "beyond"}
        yield share(
            f"{id}.{number}.close",
            f"seeds with 1 - cos ≤ {brief(CLOSE_ELSEWHERE)} at ‖p‖ = {brief(cell.until_norm)}, "
            "or a finite limit",
            certified & (np.isnan(away) | (cell.reached & (away <= CLOSE_ELSEWHERE))),
            known=np.isfinite(cell.last("limit_feasible")),
            expected=at_least(0.9),
            certificate=f"{worst(away[cell.reached])}{proof}; {cell.ends}",
            **about,
        )
        text = "share of sequences with tied tokens"
        tied = cell.last("tied_sequences")
        yield mean(f"{id}.{number}.tied", text, tied, between=(0.0, 1.0), certificate=proof, **about)


def direction_elsewhere(results, id):
    """Measure the limit direction in settings that the theorem does not cover.

    Only seeds whose flow reaches the final norm are used, and the certificate counts all other seeds. If no
    flow reaches this norm, all seeds are used.
    """
    for cell in cells(results):
        about = {"claim": DIRECTION, "setting": cell.setting, "basis": "beyond"}
        away, there = cell.last("certified_distance"), cell.reached
        if not there.any():
            about |= {"certificate": f"{cell.ends}; {cell.certificate()}", "why": cell.failure_reason}
            yield mean(f"{id}.{place(cell)}.end", "1 - cos where the flow ends", away, **about)
            continue
        text = f"{worst(away[there])}{cell.certificate()}"
        if not there.all():
            text += f"; {cell.ends}, {worst(away[~there])}there".removesuffix(", there")
        yield share(
            f"{id}.{place(cell)}.close",
            f"seeds with 1 - cos ≤ {brief(CLOSE_ELSEWHERE)}, among the seeds that reach "
            f"‖p‖ = {brief(cell.until_norm)}",
            away[there] <= CLOSE_ELSEWHERE,
            known=np.isfinite(away[there]),
            expected=at_least(0.9),
            certificate=text,
            **about,
        )
