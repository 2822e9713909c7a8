"""The claims about where gradient flow on p leads: L4.2, T4.3, L4.4/4.5 and MR, and where they stop."""

import numpy as np

from jaxattn.claims.flow import Flows, Limit, distance, growth, relevant_counts, round_up
from jaxattn.claims.rows import Claim, Row, around, mean, share
from jaxattn.claims.settings import Setting
from jaxattn.results.fits import powers
from jaxattn.results.numbers import brief
from jaxattn.theory import one_minus_cosine

# A path that ends at the distance ρ from the ray to its limit has 1 - cos = (ρ/‖p‖)²/2, and ρ is about
# 1/margin: at ‖p‖ = 1e6 that is 1e-11 for the margin of 0.28 of the base setting and 1e-8 for one of 0.01.
CLOSE, CLOSE_ELSEWHERE = 1e-9, 1e-8
# ‖p‖ between which the power is fitted: the selection has settled, and the path does not end yet.
FITTED = (1e3, 5e5)
# Growth of margin · ‖p‖ per e-fold of time: 0 at a finite stationary point, 1 on the way to infinity.
GROWS = (0.5, 2.0)


def unbounded(flows: Flows, setting: Setting) -> list[Row]:
    """Measure that ‖p‖ grows without bound, like log t.

    ‖∂L/∂p‖ falls like exp(-margin ‖p‖) if p grows for ever, so that margin · t ‖∂L/∂p‖ tends to 1; if p comes
    to rest, it tends to 0. This can be told wherever the flow ends. Where tokens tie in the limit, their
    balanced forces hide the others in float64 from margin · ‖p‖ of about 20 on, and the flow cannot be
    followed to ‖p‖ = 1e6; the certificate says for how many seeds.

    Source:
        Lemma 4.2 of arXiv 2505.17282.
    """
    limit = flows(setting)
    claim = Claim("L4.2", "‖p‖ grows without bound, like log t", setting.words)
    rate, norm = growth(limit), limit.path.norm[:, -1]
    low, high = GROWS
    rows = [
        share(
            claim,
            f"margin · t ‖∂L/∂p‖ at the end between {low:g} and {high:g}",
            (rate >= low) & (rate <= high),
            certificate=_ends(limit),
        ),
        mean(claim, "margin · t ‖∂L/∂p‖ at the end", rate, around(1.0, 0.1), certificate=limit.certificate),
    ]
    if limit.reached.all():
        ratio = limit.margin.margin * norm / limit.path.log_time[:, -1]
        measured = "margin · ‖p‖ / log t at the end"
        rows.append(mean(claim, measured, ratio, around(1.0, 0.01), certificate=limit.certificate))
    return rows


def converges(flows: Flows, setting: Setting) -> list[Row]:
    """Measure that p/‖p‖ tends to the max-margin direction of its own selection, and how fast.

    Source:
        Theorem 4.3 of arXiv 2505.17282; 1 - cos ~ ‖p‖^(-2) is derived from it in this project.
    """
    limit = flows(setting)
    statement = "p/‖p‖ tends to the max-margin direction of its own selection"
    claim = Claim("T4.3", statement, setting.words)
    away = distance(limit)
    norm = limit.path.norm
    along = one_minus_cosine(limit.path.p, limit.margin.p[:, None])
    low, high = FITTED
    power = powers(norm, np.where((norm >= low) & (norm <= high), along, np.nan))
    return [
        share(
            claim,
            f"1 - cos ≤ {brief(CLOSE)} at ‖p‖ = {brief(flows.until_norm)}",
            limit.reached & (away <= CLOSE),
            certificate=f"1 - cos ≤ {round_up(np.max(away))}, {limit.certificate}",
        ),
        mean(
            claim,
            f"power of ‖p‖ in 1 - cos, ‖p‖ from {brief(low)} to {brief(high)}",
            power,
            around(-2.0, 0.1),
            certificate=limit.certificate,
        ),
    ]


def selects(flows: Flows, setting: Setting, *, promised: bool = True) -> list[Row]:
    """Measure that the important token of every sequence is selected.

    Args:
        flows: the flows.
        setting: where.
        promised: whether the theory promises it there; if not, the share of sequences is told as well.

    Source:
        Lemmas 4.4 and 4.5 of arXiv 2505.17282.
    """
    limit = flows(setting)
    statement = "every important token is selected once t is large"
    claim = Claim("L4.4/4.5", statement, setting.words, promised)
    selected, present = relevant_counts(limit, setting.relevant)
    # Without Assumption 1 a sequence may hold several relevant tokens, or none.
    which = (
        "the important token" if setting.kind == "assumption1" else "a relevant token, where there is one,"
    )
    rows = [
        share(claim, f"{which} selected in every sequence", ((selected > 0) | (present == 0)).all(axis=1))
    ]
    if not promised:
        measured = f"share of sequences with {which} selected"
        held = (selected > 0).sum(axis=1) / (present > 0).sum(axis=1)
        rows.append(mean(claim, measured, held, between=(0.0, 1.0)))
    return rows


def several(flows: Flows, setting: Setting) -> list[Row]:
    """Measure what happens to several relevant tokens per sequence.

    The claim speaks of the direction only if all relevant tokens are selected; with E drawn at random they
    never are, and what p does then is not promised.

    Source:
        Public review thread of arXiv 2505.17282.
    """
    limit = flows(setting)
    selected, present = relevant_counts(limit, setting.relevant)
    one = Claim("MR", "at least one relevant token is selected in every sequence", setting.words)
    all_ = Claim("MR", "all relevant tokens are selected", setting.words, promised=False)
    own = Claim("MR", "p is max-margin for its own selection", setting.words, promised=False)
    away = distance(limit)
    return [
        share(one, "a relevant token selected in every sequence", (selected > 0).all(axis=1)),
        share(all_, "all relevant tokens selected in some sequence", (selected == present).any(axis=1)),
        share(
            own,
            f"1 - cos ≤ {brief(CLOSE_ELSEWHERE)} at ‖p‖ = {brief(flows.until_norm)}",
            limit.reached & (away <= CLOSE_ELSEWHERE),
            certificate=f"1 - cos ≤ {round_up(np.max(away))}, {limit.certificate}",
        ),
    ]


def elsewhere(flows: Flows, setting: Setting) -> list[Row]:
    """Measure selection and direction where the theory does not promise them."""
    limit = flows(setting)
    return [*selects(flows, setting, promised=False), _direction_elsewhere(limit, setting, flows.until_norm)]


def _direction_elsewhere(limit: Limit, setting: Setting, until_norm: float) -> Row:
    """Compare the direction on the seeds that could be followed to the end, or on all if none could."""
    statement = "p/‖p‖ tends to the max-margin direction of its own selection"
    claim = Claim("T4.3", statement, setting.words, promised=False)
    away, there = distance(limit), limit.reached
    if not there.any():
        return mean(
            claim, "1 - cos where the flow ends", away, certificate=f"{_ends(limit)}; {limit.certificate}"
        )
    text = f"1 - cos ≤ {round_up(np.max(away[there]))}, {limit.certificate}"
    if not there.all():
        text += f"; {_ends(limit)}, 1 - cos ≤ {round_up(np.max(away[~there]))} there"
    measured = f"1 - cos ≤ {brief(CLOSE_ELSEWHERE)}, seeds that come to ‖p‖ = {brief(until_norm)}"
    return share(claim, measured, away[there] <= CLOSE_ELSEWHERE, certificate=text)


def _ends(limit: Limit) -> str:
    """Say where the flows end."""
    there, norm = limit.reached, limit.path.norm[:, -1]
    texts = []
    if there.any():
        texts.append(f"‖p‖ = {brief(float(f'{norm[there].min():.2e}'))} in {there.sum()} of {len(norm)}")
    if not there.all():
        low, high = (f"{end(norm[~there]):.0f}" for end in (np.min, np.max))
        span = low if low == high else f"{low} to {high}"
        texts.append(f"{(~there).sum()} of {len(norm)} end at ‖p‖ = {span}")
    return ", ".join(texts)
