"""Measures for the claims: tests of the theory with exact flows and single steps.

A measure takes the runs of its studies and returns findings, which are numbers to be compared with
criteria. The items define the criteria.
"""

import math
from typing import Any

import numpy as np

from jaxattn.lab.books.book import Item
from jaxattn.lab.books.cells import Cell, cells, round_up, worst
from jaxattn.lab.books.findings import Finding, Measured, mean, share
from jaxattn.lab.results.fits import powers
from jaxattn.lab.results.labels import brief
from jaxattn.lab.results.run import Run

# Tolerances for 1 - cos. A path at distance ρ from its limiting ray has 1 - cos = (ρ/‖p‖)²/2, where ρ is
# about 1/margin. At ‖p‖ = 1e6 this is about 1e-11 for a margin of 0.28, as in the base settings, and 1e-8 for
# a margin of 0.01. The joint flow of p and v ends at ‖p‖ = 1e4, where the same distances give about 1e-7 or
# more.
CLOSE, CLOSE_ELSEWHERE, CLOSE_TOGETHER = 1e-9, 1e-8, 1e-6
# Range of ‖p‖ in which the exponent is fitted: after the selected tokens stop changing and before the path
# ends.
FITTED = (1e3, 5e5)
# Accepted range for the growth of margin · ‖p‖ per e-fold in time. The growth is 0 at a finite stationary
# point and 1 if ‖p‖ diverges.
GROWS = (0.5, 2.0)

_GROWS = "‖p‖ grows without bound, like log t"
_DIRECTION = "p/‖p‖ tends to the max-margin direction of its own selection"


def one_step_law(results: Run, item: Item) -> Measured:
    """Fit the exponent of d in the error of the one-step law.

    The law predicts how one gradient step of size η0 on E changes the values E·v; see `theory.one_step_law`.
    For token s, let E_s⁰ and E_s¹ be the embeddings before and after the step, and α_s the average signed
    frequency. The error in the values is max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0; for K classes, the maximum
    over classes is taken. The error in the embeddings is max_s ‖E_s¹ - E_s⁰ - (η0/2) α_s v‖ / η0. The step is
    linear in η0, so neither error depends on η0. For texts, the most frequent of thousands of tokens
    determines the maximum. Each seed's error then behaves like a single normal variable, so the interval is
    wide.

    Args:
        results: a run with at least two values of d. Except for texts, error · √d is also measured at the
            largest d.
        item: the item.

    Source:
        Lemma 4.1 of arXiv 2505.17282; for K classes, its public review thread.
    """
    every = cells(results)
    dims = [cell["model.dim"] for cell in every]
    where = f"{every[0].data}, d = {', '.join(map(str, dims))}"
    found = []
    for of, metric in {"values E·v": "one_step_error", "embeddings E": "embedding_error"}.items():
        statement = f"the error of the one-step law in the {of} falls like d^(-1/2)"
        errors = np.stack([cell.last(metric, "step") for cell in every], axis=1)
        power = powers(dims, errors)
        found.append(mean(f"power of d in the error of {of}", power, statement=statement, setting=where))
    if not every[0].of_texts:
        largest = every[-1].last("one_step_error", "step") * np.sqrt(dims[-1])
        measured = f"error of values · √d at d = {dims[-1]}"
        found.append(mean(measured, largest, statement="the constant of the one-step law", setting=where))
    return Measured(found, {})


def unbounded(results: Run, item: Item) -> Measured:
    """Measure whether ‖p‖ grows without bound, like log t.

    Let t be the time of the flow and m the maximum margin. If ‖p‖ diverges, ‖∂L/∂p‖ decays like exp(-m ‖p‖),
    so m t ‖∂L/∂p‖ tends to 1. If p converges to a finite point, this product tends to 0. The test does not
    depend on where the flow ends. If the flow fails to detect tokens that are tied in the limit, their
    balanced forces mask all other forces in float64 once m ‖p‖ exceeds about 20. The flow then ends before
    ‖p‖ = 1e6, and the certificate counts these seeds.

    Source:
        Lemma 4.2 of arXiv 2505.17282.
    """
    (cell,) = cells(results)
    of: dict[str, Any] = {"statement": _GROWS, "setting": cell.setting}
    low, high = GROWS
    log_time, margin, text = cell.last("log_time"), cell.last("max_margin"), cell.certificate()
    with np.errstate(over="ignore"):
        rate = margin * np.exp(log_time + cell.last("log_gradient_norm"))
    satisfied = (rate >= low) & (rate <= high)
    measured, there = "margin · t ‖∂L/∂p‖ at the end", cell.reached
    between = f"{measured} between {low:g} and {high:g}"
    found = [
        share(
            between, satisfied, known=np.isfinite(rate), certificate=cell.ends, why=cell.failure_reason, **of
        ),
    ]
    if there.sum() > 1:
        # For seeds that do not reach this norm, ‖∂L/∂p‖ may be mere rounding error, because the forces
        # balance.
        which = "" if there.all() else f", seeds that come to ‖p‖ = {brief(cell.until_norm)}"
        found.append(mean(measured + which, rate[there], certificate=text, **of))
    if cell.reached.all():
        ratio = margin * cell.last("p_norm") / log_time
        found.append(mean("margin · ‖p‖ / log t at the end", ratio, certificate=text, **of))
    return Measured(found, {})


def grows_on_texts(results: Run, item: Item) -> Measured:
    """Measure the growth of ‖p‖ on text data, using gradient descent with small steps instead of the flow.

    These runs are too short to show either unbounded growth or convergence to a finite point.

    Source:
        Lemma 4.2 of arXiv 2505.17282.
    """
    (cell,) = cells(results)
    steps, rate = cell["phases.descent.steps"], cell["phases.descent.step_size"]
    time, norm = steps * rate, cell.last("p_norm", "descent")
    # This is d‖p‖/dt = p · dp/dt / ‖p‖, where dp/dt = -∂L/∂p.
    speed = cell.last("cos_p_descent", "descent") * np.exp(cell.last("log_gradient_norm", "descent"))
    of: dict[str, Any] = {"statement": _GROWS, "setting": f"{cell.setting}; {steps} steps of {rate:g}"}
    found = [
        mean(f"‖p‖ at t = {time:g}, from 1 at the start", norm, between=(0.0, math.inf), **of),
        mean(f"d‖p‖/d log t at t = {time:g}", time * speed, **of),
    ]
    return Measured(found, {})


def converges(results: Run, item: Item) -> Measured:
    """Measure whether, and how fast, p/‖p‖ converges to the max-margin direction for the selected tokens.

    Source:
        Theorem 4.3 of arXiv 2505.17282; this project derives from it that 1 - cos between p and the
        max-margin direction decreases like ‖p‖^(-2).
    """
    (cell,) = cells(results)
    norm, along = cell.path("p_norm"), cell.path("one_minus_cosine")
    low, high = FITTED
    power = powers(norm, np.where((norm >= low) & (norm <= high), along, np.nan))
    measured = f"power of ‖p‖ in 1 - cos, ‖p‖ from {brief(low)} to {brief(high)}"
    of: dict[str, Any] = {"statement": _DIRECTION, "setting": cell.setting, "why": cell.failure_reason}
    return Measured(
        [_is_close(cell, _DIRECTION, CLOSE), mean(measured, power, certificate=cell.certificate(), **of)], {}
    )


def checked(results: Run, item: Item) -> Measured:
    """Measure how often the independent checker accepts the max-margin direction.

    The finding's certificate states the largest proven duality gap.
    """
    (cell,) = cells(results)
    accepted, gap = cell.last("accepted"), cell.last("proven_gap")
    of: dict[str, Any] = {
        "statement": "max-margin directions are certified in exact arithmetic",
        "setting": cell.setting,
        "certificate": f"proven gap at most {round_up(np.nanmax(gap))}",
    }
    known = np.isfinite(accepted)
    return Measured([share("accepted by the independent checker", accepted == 1, known=known, **of)], {})


def direction_elsewhere(results: Run, item: Item) -> Measured:
    """Measure the limit direction in settings that the theory does not cover.

    Only seeds whose flow reaches the final norm are used, and the certificate counts all other seeds. If no
    flow reaches this norm, all seeds are used.
    """
    found = []
    for cell in cells(results):
        of: dict[str, Any] = {"statement": _DIRECTION, "setting": cell.setting}
        away, there = cell.last("certified_distance"), cell.reached
        if not there.any():
            text = f"{cell.ends}; {cell.certificate()}"
            found.append(
                mean("1 - cos where the flow ends", away, certificate=text, why=cell.failure_reason, **of)
            )
            continue
        text = f"{worst(away[there])}{cell.certificate()}"
        if not there.all():
            text += f"; {cell.ends}, {worst(away[~there])}there".removesuffix(", there")
        measured = f"1 - cos ≤ {brief(CLOSE_ELSEWHERE)}, seeds that come to ‖p‖ = {brief(cell.until_norm)}"
        near = away[there] <= CLOSE_ELSEWHERE
        found.append(share(measured, near, known=np.isfinite(away[there]), certificate=text, **of))
    return Measured(found, {})


def with_ties(results: Run, item: Item) -> Measured:
    """Measure the convergence of p/‖p‖ to the certified limit when tokens are tied.

    No theory predicts this case. A seed with a certified finite limit counts as converged.

    Source:
        docs/notes/exact_flow_ties.md.
    """
    found = []
    statement = "p/‖p‖ tends to the certified limit of the flow, in which tokens may tie"
    for cell in cells(results):
        away, certified = cell.last("limit_certified_distance"), cell.last("limit_feasible") == 1
        satisfied = certified & (np.isnan(away) | (cell.reached & (away <= CLOSE_ELSEWHERE)))
        proof, tied = cell.certificate("limit_"), cell.last("tied_sequences")
        text = f"{worst(away[cell.reached])}{proof}; {cell.ends}"
        measured = f"1 - cos ≤ {brief(CLOSE_ELSEWHERE)} at ‖p‖ = {brief(cell.until_norm)}, or a finite limit"
        known = np.isfinite(cell.last("limit_feasible"))
        of: dict[str, Any] = {"statement": statement, "setting": cell.setting, "why": cell.failure_reason}
        ties = "share of sequences with tied tokens"
        found += [
            share(measured, satisfied, known=known, certificate=text, **of),
            mean(ties, tied, between=(0.0, 1.0), certificate=proof, **of),
        ]
    return Measured(found, {})


def selects(results: Run, item: Item, *, shares: bool = False) -> Measured:
    """Measure whether the relevant token of each sequence is selected.

    In the names of the findings, this token is called the important token.

    Args:
        results: the run.
        item: the item.
        shares: True to also measure the fraction of sequences in which this token is selected.

    Source:
        Lemmas 4.4 and 4.5 of arXiv 2505.17282.
    """
    found = []
    for cell in cells(results):
        held = cell.last("relevant_selected")
        # Without Assumption 1, a sequence may contain several relevant tokens, or none.
        only_one = cell["data.kind"] == "assumption1"
        which = "the important token" if only_one else "a relevant token, where there is one,"
        statement = "every important token is selected once t is large"
        of: dict[str, Any] = {"statement": statement, "setting": cell.setting, "why": cell.failure_reason}
        found.append(share(f"{which} selected in every sequence", held == 1, known=np.isfinite(held), **of))
        if shares:
            found.append(mean(f"share of sequences with {which} selected", held, between=(0.0, 1.0), **of))
    return Measured(found, {})


def several(results: Run, item: Item) -> Measured:
    """Measure the limit direction, and which of the relevant tokens of a sequence are selected.

    The claim about the direction assumes that all relevant tokens are selected. With random E this
    assumption never holds, and no theory then predicts the limit.

    Source:
        Public review thread of arXiv 2505.17282.
    """
    found = []
    for cell in cells(results):
        held, all_held = (cell.last(f"{x}relevant_selected") for x in ("", "only_"))
        of: dict[str, Any] = {"setting": cell.setting, "why": cell.failure_reason, "known": np.isfinite(held)}
        one = "at least one relevant token is selected in every sequence"
        every = "all relevant tokens are selected"
        found += [
            share("a relevant token selected in every sequence", held == 1, statement=one, **of),
            share("all relevant tokens selected in some sequence", all_held > 0, statement=every, **of),
            _is_close(cell, "p is max-margin for its own selection", CLOSE_ELSEWHERE),
        ]
    return Measured(found, {})


def jointly(alone: Run, together: Run, item: Item) -> Measured:
    """Measure whether training v together with p changes the limit of p.

    The regularisation path of p and v tends to the relaxed max-margin direction: the weight of a sequence in
    the loss vanishes unless it is on the margin of the max-margin v. In all other sequences, the selected
    token needs only the highest score, not a margin. This project conjectures the same for the flow. The
    claim that p has the same limit direction as when it is trained alone comes from the review thread; it is
    not in the paper.

    Args:
        alone: the run with the flow on p only.
        together: the run with the flow on p and v.
        item: the item.

    Source:
        Public review thread of arXiv 2505.17282; Tarzanagh et al. (arXiv 2306.13596) for the regularisation
        path.
    """
    (before,), (cell,) = cells(alone), cells(together)
    until = cell["phases.together.until_norm"]
    # In sequences off the margin of v_mm, the relevant token may lead by only a few nats, so test only the
    # sign of the margins.
    margins = before.last("relevant_margin"), cell.last("relevant_margin", "together")
    same, norm = (margins[0] > 0) & (margins[1] > 0), cell.last("p_norm", "together")
    there, why = norm >= until * (1 - 1e-9), cell.failure_reason or before.failure_reason
    relaxed, apart, head = (
        cell.last(name, "together")
        for name in ("relaxed_certified_distance", "unrelaxed_one_minus_cosine", "head_one_minus_cosine")
    )
    of: dict[str, Any] = {"setting": f"{cell.setting}; flow of p and v to ‖p‖ = {brief(until)}", "why": why}
    proof = f"{worst(relaxed)}{cell.certificate('relaxed_', 'together')}"
    ends = f"‖p‖ = {brief(until)} in {there.sum()} of {len(there)}"
    apart_by = round_up(np.nanmax(cell.last("mismatch", "together")))
    mismatch = f"directly and with v slaved dp/dt differs by {apart_by}"
    support = cell.last("relaxed_support", "together")
    stays = "training v as well does not change the limit direction of p"

    def near(what: str, away: Any, statement: str, certificate: str = "-") -> Finding:
        measured, close = f"1 - cos ≤ {brief(CLOSE_TOGETHER)} to {what}", there & (away <= CLOSE_TOGETHER)
        known = np.isfinite(away) & np.isfinite(norm)
        return share(measured, close, known=known, statement=statement, certificate=certificate, **of)

    tight = "share of sequences on which v_mm is tight"
    found = [
        share(
            "the important token on top in every sequence, as for p alone",
            same,
            known=np.isfinite(margins).all(axis=0),
            statement="training v as well does not change what is selected",
            certificate=ends,
            **of,
        ),
        near("p_relax", relaxed, _RELAXED, proof),
        near("p_mm", apart, stays),
        mean("1 - cos to p_mm", apart, between=(0.0, 2.0), statement=stays, **of),
        mean(tight, support, between=(0.0, 1.0), statement=stays, **of),
        near("v_mm", head, "v/‖v‖ tends to the max-margin head of the selected tokens", mismatch),
    ]
    return Measured(found, {})


_RELAXED = "p/‖p‖ tends to p_relax, as on the regularisation path of arXiv 2306.13596"


def _is_close(cell: Cell, statement: str, close: float) -> Finding:
    away = cell.last("certified_distance")
    text = f"{worst(away)}{cell.certificate()}"
    measured = f"1 - cos ≤ {brief(close)} at ‖p‖ = {brief(cell.until_norm)}"
    known, near = np.isfinite(away) & np.isfinite(cell.last("p_norm")), cell.reached & (away <= close)
    return share(
        measured,
        near,
        known=known,
        statement=statement,
        setting=cell.setting,
        certificate=text,
        why=cell.failure_reason,
    )
