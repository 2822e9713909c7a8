"""Judges: what the records of a study say of the claims of the theory, as rows of the scoreboard."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxattn.lab.books.rows import Cell, Claim, Row, mean, round_up, share, worst
from jaxattn.lab.results.fits import powers
from jaxattn.lab.results.judge import around
from jaxattn.lab.results.labels import brief

# A path that ends at the distance ρ from the ray to its limit has 1 - cos = (ρ/‖p‖)²/2, and ρ is about
# 1/margin: at ‖p‖ = 1e6 that is 1e-11 for the margin of 0.28 of the base setting and 1e-8 for one of 0.01.
# That of p and v together is followed to 1e4, where the same distances make 1e-7 and more.
CLOSE, CLOSE_ELSEWHERE, CLOSE_TOGETHER = 1e-9, 1e-8, 1e-6
# ‖p‖ between which the power is fitted: the selection has settled, and the path does not end yet.
FITTED = (1e3, 5e5)
# Growth of margin · ‖p‖ per e-fold of time: 0 at a finite stationary point, 1 on the way to infinity.
GROWS = (0.5, 2.0)
POWER = around(-0.5, 0.05)

_GROWS = "‖p‖ grows without bound, like log t"
_DIRECTION = "p/‖p‖ tends to the max-margin direction of its own selection"


def one_step_law(cells: Sequence[Cell]) -> list[Row]:
    """Judge the power of d in the error of the one-step law: L4.1, and MC for more than two classes.

    The error of values is max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0 (for K classes also the largest over
    classes), that of embeddings max_s ‖E_s¹ - E_s⁰ - (η0/2) α_s v‖ / η0. Both are linear in η0. Of many
    thousand tokens of a text the most frequent one decides the largest error, so that a seed's error is about
    the size of a single normal variable: the interval is wide.

    Args:
        cells: one for each d, two or more. At the largest one the constant error · √d is told as well, but
            for texts.

    Source:
        Lemma 4.1 of arXiv 2505.17282; K classes from its public review thread.
    """
    dims = [cell["model.dim"] for cell in cells]
    texts = bool(cells[0].texts)
    name = "MC" if not texts and cells[0]["data.num_classes"] > 2 else "L4.1"
    where = f"{cells[0].data}, d = {', '.join(map(str, dims))}"
    measured = {"values E·v": "one_step_error", "embeddings E": "embedding_error"}
    rows = []
    for of, metric in measured.items():
        claim = Claim(name, f"the error of the one-step law in the {of} falls like d^(-1/2)", where)
        errors = np.stack([cell.last(metric, "step") for cell in cells], axis=1)
        rows.append(mean(claim, f"power of d in the error of {of}", powers(dims, errors), POWER))
    if not texts:
        claim = Claim(name, "the constant of the one-step law", where, promised=False)
        largest = cells[-1].last("one_step_error", "step") * np.sqrt(dims[-1])
        rows.append(mean(claim, f"error of values · √d at d = {dims[-1]}", largest))
    return rows


def unbounded(cells: Sequence[Cell]) -> list[Row]:
    """Judge that ‖p‖ grows without bound, like log t.

    ‖∂L/∂p‖ falls like exp(-margin ‖p‖) if p grows for ever, so that margin · t ‖∂L/∂p‖ tends to 1; if p comes
    to rest, it tends to 0. This can be told wherever the flow ends. Where tokens tie in the limit and it
    could not be told which, their balanced forces hide the others in float64 from margin · ‖p‖ of about 20
    on, and the flow is not followed to ‖p‖ = 1e6; the certificate says for how many seeds.

    Source:
        Lemma 4.2 of arXiv 2505.17282.
    """
    (cell,) = cells
    claim = Claim("L4.2", _GROWS, cell.setting)
    low, high = GROWS
    log_time, margin, text = cell.last("log_time"), cell.last("max_margin"), cell.certificate()
    with np.errstate(over="ignore"):
        rate = margin * np.exp(log_time + cell.last("log_gradient_norm"))
    satisfied = (rate >= low) & (rate <= high)
    measured, there = "margin · t ‖∂L/∂p‖ at the end", cell.reached
    rows = [
        share(
            claim,
            f"{measured} between {low:g} and {high:g}",
            satisfied,
            known=np.isfinite(rate),
            certificate=cell.ends,
            why=cell.why,
        )
    ]
    if there.sum() > 1:
        # Elsewhere ‖∂L/∂p‖ may be what rounding left of forces that balance.
        which = "" if there.all() else f", seeds that come to ‖p‖ = {brief(cell.until_norm)}"
        rows.append(mean(claim, measured + which, rate[there], around(1.0, 0.1), certificate=text))
    if cell.reached.all():
        ratio = margin * cell.last("p_norm") / log_time
        rows.append(
            mean(claim, "margin · ‖p‖ / log t at the end", ratio, around(1.0, 0.01), certificate=text)
        )
    return rows


def converges(cells: Sequence[Cell]) -> list[Row]:
    """Judge that p/‖p‖ tends to the max-margin direction of its own selection, and how fast.

    Source:
        Theorem 4.3 of arXiv 2505.17282; 1 - cos ~ ‖p‖^(-2) is derived from it in this project.
    """
    (cell,) = cells
    claim = Claim("T4.3", _DIRECTION, cell.setting)
    norm, along = cell.path("p_norm"), cell.path("one_minus_cosine")
    low, high = FITTED
    power = powers(norm, np.where((norm >= low) & (norm <= high), along, np.nan))
    measured = f"power of ‖p‖ in 1 - cos, ‖p‖ from {brief(low)} to {brief(high)}"
    return [
        _is_close(cell, claim, CLOSE),
        mean(claim, measured, power, around(-2.0, 0.1), certificate=cell.certificate(), why=cell.why),
    ]


def selects(cells: Sequence[Cell], *, promised: bool = True) -> list[Row]:
    """Judge that the important token of every sequence is selected.

    Args:
        cells: where.
        promised: whether the theory promises it there; if not, the share of sequences is told as well.

    Source:
        Lemmas 4.4 and 4.5 of arXiv 2505.17282.
    """
    rows = []
    for cell in cells:
        statement = "every important token is selected once t is large"
        claim = Claim("L4.4/4.5", statement, cell.setting, promised)
        held = cell.last("relevant_selected")
        # Without Assumption 1 a sequence may hold several relevant tokens, or none.
        only_one = cell["data.kind"] == "assumption1"
        which = "the important token" if only_one else "a relevant token, where there is one,"
        of: dict[str, Any] = {"known": np.isfinite(held), "why": cell.why}
        rows.append(share(claim, f"{which} selected in every sequence", held == 1, **of))
        if not promised:
            measured = f"share of sequences with {which} selected"
            rows.append(mean(claim, measured, held, between=(0.0, 1.0), why=cell.why))
    return rows


def several(cells: Sequence[Cell]) -> list[Row]:
    """Judge what happens to several relevant tokens per sequence.

    The claim speaks of the direction only if all relevant tokens are selected; with E drawn at random they
    never are, and what p does then is not promised.

    Source:
        Public review thread of arXiv 2505.17282.
    """
    rows = []
    for cell in cells:
        one = Claim("MR", "at least one relevant token is selected in every sequence", cell.setting)
        every = Claim("MR", "all relevant tokens are selected", cell.setting, promised=False)
        own = Claim("MR", "p is max-margin for its own selection", cell.setting, promised=False)
        held, all_held = (cell.last(f"{x}relevant_selected") for x in ("", "only_"))
        of: dict[str, Any] = {"known": np.isfinite(held), "why": cell.why}
        rows += [
            share(one, "a relevant token selected in every sequence", held == 1, **of),
            share(every, "all relevant tokens selected in some sequence", all_held > 0, **of),
            _is_close(cell, own, CLOSE_ELSEWHERE),
        ]
    return rows


def direction_elsewhere(cells: Sequence[Cell]) -> list[Row]:
    """Judge the direction where no theory promises it, on the seeds that could be followed to the end.

    Those whose flow ends before are told in the certificate; if all do, all are judged.
    """
    rows = []
    for cell in cells:
        claim = Claim("T4.3", _DIRECTION, cell.setting, promised=False)
        away, there = cell.last("certified_distance"), cell.reached
        if not there.any():
            text = f"{cell.ends}; {cell.certificate()}"
            rows.append(mean(claim, "1 - cos where the flow ends", away, certificate=text, why=cell.why))
            continue
        text = f"{worst(away[there])}{cell.certificate()}"
        if not there.all():
            text += f"; {cell.ends}, {worst(away[~there])}there".removesuffix(", there")
        measured = f"1 - cos ≤ {brief(CLOSE_ELSEWHERE)}, seeds that come to ‖p‖ = {brief(cell.until_norm)}"
        near = away[there] <= CLOSE_ELSEWHERE
        rows.append(share(claim, measured, near, known=np.isfinite(away[there]), certificate=text))
    return rows


def with_ties(cells: Sequence[Cell]) -> list[Row]:
    """Judge that p/‖p‖ tends to the limit that is certified with tied tokens, where no theory promises it.

    A seed whose limit is a finite point, which is certified by the same numbers, counts as well.

    Source:
        docs/explanation/exact_flow_ties.md.
    """
    rows = []
    for cell in cells:
        statement = "p/‖p‖ tends to the certified limit of the flow, in which tokens may tie"
        claim = Claim("T4.3", statement, cell.setting, promised=False)
        away, certified = cell.last("limit_certified_distance"), cell.last("limit_feasible") == 1
        finite = np.isnan(away)
        satisfied = certified & (finite | (cell.reached & (away <= CLOSE_ELSEWHERE)))
        proof = cell.certificate("limit_")
        text = f"{worst(away[cell.reached])}{proof}; {cell.ends}"
        measured = f"1 - cos ≤ {brief(CLOSE_ELSEWHERE)} at ‖p‖ = {brief(cell.until_norm)}, or a finite limit"
        tied = cell.last("tied_sequences")
        share_of = "share of sequences with tied tokens"
        known = np.isfinite(cell.last("limit_feasible"))
        rows += [
            share(claim, measured, satisfied, known=known, certificate=text, why=cell.why),
            mean(claim, share_of, tied, between=(0.0, 1.0), certificate=proof, why=cell.why),
        ]
    return rows


def jointly(alone: Sequence[Cell], together: Sequence[Cell]) -> list[Row]:
    """Judge claim V: whether training v as well changes where p goes.

    The regularisation path of p and v tends to the relaxed max-margin direction: sequences on which the
    max-margin head of the selected tokens is not tight lose their weight in the loss, and their tokens need
    not be told apart by a margin, only not the wrong way round. That the flow does so too is this project's
    conjecture. That p's direction is the one of p trained alone was said in review, and is not a promise of
    the paper.

    Args:
        alone: the flow of p alone.
        together: the flow of p and v.

    Source:
        Public review thread of arXiv 2505.17282; Tarzanagh et al. (arXiv 2306.13596) for the regularisation
        path.
    """
    (before,), (cell,) = alone, together
    until = cell["phases.together.until_norm"]
    # Where v_mm is not tight, other tokens may stay within a few nats for ever: only the order is asked for.
    margins = before.last("relevant_margin"), cell.last("relevant_margin", "together")
    same, norm = (margins[0] > 0) & (margins[1] > 0), cell.last("p_norm", "together")
    there, why = norm >= until * (1 - 1e-9), cell.why or before.why
    relaxed, apart, head = (
        cell.last(name, "together")
        for name in ("relaxed_certified_distance", "unrelaxed_one_minus_cosine", "head_one_minus_cosine")
    )
    where = f"{cell.setting}; flow of p and v to ‖p‖ = {brief(until)}"
    keeps = Claim("V", "training v as well does not change what is selected", where)
    tends = Claim("V", "p/‖p‖ tends to p_relax, as on the regularisation path of arXiv 2306.13596", where)
    stays = Claim("V", "training v as well does not change the limit direction of p", where, promised=False)
    of_v = Claim("V", "v/‖v‖ tends to the max-margin head of the selected tokens", where, promised=False)
    proof = f"{worst(relaxed)}{cell.certificate('relaxed_', 'together')}"
    ends = f"‖p‖ = {brief(until)} in {there.sum()} of {len(there)}"
    apart_by = round_up(np.nanmax(cell.last("mismatch", "together")))
    mismatch = f"directly and with v slaved dp/dt differs by {apart_by}"
    support = cell.last("relaxed_support", "together")

    def near(claim: Claim, what: str, away: Any, certificate: str) -> Row:
        measured, found = f"1 - cos ≤ {brief(CLOSE_TOGETHER)} to {what}", there & (away <= CLOSE_TOGETHER)
        known = np.isfinite(away) & np.isfinite(norm)
        return share(claim, measured, found, known=known, certificate=certificate, why=why)

    return [
        share(
            keeps,
            "the important token on top in every sequence, as for p alone",
            same,
            known=np.isfinite(margins).all(axis=0),
            certificate=ends,
            why=why,
        ),
        near(tends, "p_relax", relaxed, proof),
        near(stays, "p_mm", apart, "-"),
        mean(stays, "1 - cos to p_mm", apart, between=(0.0, 2.0), why=why),
        mean(stays, "share of sequences on which v_mm is tight", support, between=(0.0, 1.0), why=why),
        near(of_v, "v_mm", head, mismatch),
    ]


def grows_on_texts(cells: Sequence[Cell]) -> list[Row]:
    """Judge how far ‖p‖ grows on texts, by small steps of gradient descent in place of the flow.

    Neither growth without bound nor a point of rest can be seen in a run of this length: the rows are
    promised and stay undecided.

    Source:
        Lemma 4.2 of arXiv 2505.17282.
    """
    (cell,) = cells
    steps, rate = cell["phases.descent.steps"], cell["phases.descent.step_size"]
    time, norm = steps * rate, cell.last("p_norm", "descent")
    # p · dp/dt / ‖p‖, and dp/dt = -∂L/∂p.
    speed = cell.last("cos_p_descent", "descent") * np.exp(cell.last("log_gradient_norm", "descent"))
    claim = Claim("L4.2", _GROWS, f"{cell.setting}; {steps} steps of {rate:g}")
    return [
        mean(claim, f"‖p‖ at t = {time:g}, from 1 at the start", norm, between=(0.0, math.inf)),
        mean(claim, f"d‖p‖/d log t at t = {time:g}", time * speed),
    ]


def _is_close(cell: Cell, claim: Claim, close: float) -> Row:
    """Make the row that p comes so close to its max-margin direction."""
    away = cell.last("certified_distance")
    text = f"{worst(away)}{cell.certificate()}"
    measured = f"1 - cos ≤ {brief(close)} at ‖p‖ = {brief(cell.until_norm)}"
    known, near = np.isfinite(away) & np.isfinite(cell.last("p_norm")), cell.reached & (away <= close)
    return share(claim, measured, near, known=known, certificate=text, why=cell.why)
