"""Variants of training that may avoid the window, such as other initialisations, losses or schedules."""

import numpy as np
from mine import Balanced, study

import jaxattn as ja
from jaxattn.lab.results.intervals import clopper_pearson

STEP_SIZE = 800.0
SEEDS = 20
BETAS = [2.0, 4.0, 6.0]


def walk(name, steps):
    """Return a phase for normalised descent on p with step length 0.02."""
    return ja.dynamics.Descent(name=name, train=["p"], optimizer="normalized", step_size=0.02, steps=steps)


def walked(steps):
    """Return two phases: one step on E, followed by `steps` steps on p."""
    return [ja.dynamics.OneStep(name="embed", step_size=STEP_SIZE), walk("query", steps)]


def variants():
    """Yield the name, the phases and other changed settings of each variant."""
    one_step, descent = ja.dynamics.OneStep, ja.dynamics.Descent
    several = descent(name="embed", train=["E"], optimizer="sgd", step_size=STEP_SIZE / 100, steps=100)
    small = one_step(name="small", step_size=200.0)
    rest = one_step(name="rest", step_size=STEP_SIZE - 200)
    joint = descent(name="query", train=["E", "p", "v"], optimizer="sgd", step_size=10.0, steps=10_000)
    yield "one step on E, then p", walked(1000), {}
    yield "p = 0 initially", walked(1000), {"init": {"p": "zero"}}
    yield "100 steps of η0/100 on E, then p", [several, walk("query", 1000)], {}
    yield (
        "η0 = 200, p, η0 = 600, p again",
        [small, walk("first_query", 1000), rest, walk("query", 1000)],
        {},
    )
    for beta in BETAS:
        yield f"balanced loss, β = {beta:g}", walked(1000), {"loss": Balanced(beta=beta)}
    yield "E, p, v jointly from the start", [joint], {}
    yield "one step on E, then E, p, v jointly", [walked(1)[0], joint], {}


def least_beta(step_size, *, relevant, length, **_):
    """Compute β = h'(0) / (g h(0)²), above which no label asymmetry grows at uniform attention."""
    g, q = step_size / (2 * relevant * length), 1 / length
    wrong = 1 / (1 + np.exp(g * q))
    h = wrong * q * (1 - q)
    slope = 1 - 2 * q - g * (1 - wrong) * q * (1 - q)
    return slope / (g * h)


def escapes(seeds, runs):
    """Yield a row for each variant, with the number and the fraction of seeds that lose a label.

    A row also contains the interval of the fraction, the median final loss and the median final ‖p‖.
    """
    for place, (name, phases, more) in enumerate(variants()):
        folder = runs / f"escape_{place}"
        results = study("equal", seeds, phases=phases, name=f"escape_{place}", **more).run(folder, quiet=True)
        end = results.records.query("phase == 'query'")
        end = end[end["step"] == end["step"].max()].pivot(index="seed", columns="metric", values="value")
        lost = int((end["kept"] < 0.5).sum())
        low, high = clopper_pearson(lost, len(end))
        yield {
            "variant": name,
            "seeds": len(end),
            "lost": lost,
            "share": round(lost / len(end), 3),
            "low": round(float(low), 3),
            "high": round(float(high), 3),
            "median_loss": float(f"{end['loss'].median():.3g}"),
            "median_p_norm": float(f"{end['p_norm'].median():.4g}"),
        }
