"""Lemma 4.2: ‖p‖ grows without bound, like log t."""

import math

import numpy as np

from jaxattn.lab.books import around, at_least, cells, mean, share
from jaxattn.lab.results.labels import brief

CLAIM = "‖p‖ grows without bound, like log t"
# Accepted range for margin · t ‖∂L/∂p‖, which tends to 0 at a finite stationary point, and to 1 if ‖p‖
# diverges.
GROWS = (0.5, 2.0)


def check(results):
    """Measure the growth at the end of exact flows, and of descent on reviews."""
    for name in ("base", "independent"):
        yield from unbounded(results[name], name)
    if "flow-texts" in results:
        yield from grows_on_texts(results["flow-texts"])


def unbounded(results, id):
    """Measure whether ‖p‖ grows without bound, like log t.

    Let t be the time of the flow and m the maximum margin. If ‖p‖ diverges, ‖∂L/∂p‖ decays like exp(-m ‖p‖),
    so m t ‖∂L/∂p‖ tends to 1. The test does not depend on where the flow ends. If the flow fails to detect
    tokens that are tied in the limit, their balanced forces mask all other forces in float64 once m ‖p‖
    exceeds about 20. The flow then ends before ‖p‖ = 1e6, and the certificate counts these seeds.
    """
    (cell,) = cells(results)
    about = {"claim": CLAIM, "setting": cell.setting, "basis": "theory"}
    low, high = GROWS
    log_time, margin, reached = cell.last("log_time"), cell.last("max_margin"), cell.reached
    with np.errstate(over="ignore"):
        rate = margin * np.exp(log_time + cell.last("log_gradient_norm"))
    yield share(
        f"{id}.grows",
        f"seeds with margin · t ‖∂L/∂p‖ between {low:g} and {high:g} at the end",
        (rate >= low) & (rate <= high),
        known=np.isfinite(rate),
        expected=at_least(0.9),
        certificate=cell.ends,
        why=cell.failure_reason,
        **about,
    )
    about["certificate"] = cell.certificate()
    if reached.sum() > 1:
        # For seeds that do not reach this norm, ‖∂L/∂p‖ may be mere rounding error, because the forces
        # balance.
        which = "" if reached.all() else f", among the seeds that reach ‖p‖ = {brief(cell.until_norm)}"
        text = f"margin · t ‖∂L/∂p‖ at the end{which}"
        yield mean(f"{id}.rate", text, rate[reached], expected=around(1.0, 0.1), **about)
    if reached.all():
        ratio = margin * cell.last("p_norm") / log_time
        text = "margin · ‖p‖ / log t at the end"
        yield mean(f"{id}.ratio", text, ratio, expected=around(1.0, 0.01), **about)


def grows_on_texts(results):
    """Measure the growth of ‖p‖ on reviews, by descent with small steps, which is too short for a verdict."""
    (cell,) = cells(results)
    steps, rate = cell["phases.descent.steps"], cell["phases.descent.step_size"]
    time, norm = steps * rate, cell.last("p_norm", "descent")
    # This is d‖p‖/dt = p · dp/dt / ‖p‖, where dp/dt = -∂L/∂p.
    speed = cell.last("cos_p_descent", "descent") * np.exp(cell.last("log_gradient_norm", "descent"))
    where = f"{cell.setting}; {steps} steps of {rate:g}"
    about = {"claim": CLAIM, "setting": where, "basis": "theory"}
    yield mean("texts.norm", f"‖p‖ at t = {time:g} (initially 1)", norm, between=(0.0, math.inf), **about)
    yield mean("texts.speed", f"d‖p‖/d log t at t = {time:g}", time * speed, **about)
