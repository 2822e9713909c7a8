"""Plot the distance of p from its limit against gradient-flow time, for the example in the README.

    python benchmarks/reach.py --out results/reach

The figure compares the exact flow with a loop of plain gradient descent on p: the textbook E[x] model,
autodiff, float32, and a constant step size. The time of the loop is the sum of its step sizes. The limit is
the certified max-margin direction for the tokens that the exact flow selects.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import jaxattn as ja
from jaxattn.lab.figures import style

# Larger steps leave the path of gradient flow.
STEP, STEPS = 0.03, 100_000
# Width of the figure in inches. On a phone, text keeps its size.
WIDTH = 4.7


def problem():
    """Return the parameters after one step on E, and the corpus, as in the README."""
    corpus = ja.data.assumption1(jax.random.key(0), vocab_size=64, relevant=8, length=8, sequences=256)
    params = ja.models.one_layer.init(jax.random.key(1), vocab_size=64, dim=1024)
    return ja.dynamics.one_step(params, corpus, step_size=2e3), corpus


def loop(params, corpus, target):
    """Run gradient descent on p and return rows of log t and 1 - cos."""
    ids, mask = ja.models.reference.padded_sequences(corpus)
    # The part of p outside span(E) never changes, so 64 coordinates and the norm of that part are enough.
    basis = jnp.linalg.qr(params.E.T)[0]
    E, v, p = params.E @ basis, basis.T @ params.v, basis.T @ params.p
    outside = jnp.square(params.p).sum() - jnp.square(p).sum()

    def loss(p):
        outputs = ja.models.reference.outputs(ja.models.one_layer.Params(E, p, v), ids, mask)
        return ja.losses.logistic(outputs, corpus.targets).mean()

    @jax.jit
    def advance(p, steps):
        return jax.lax.fori_loop(0, steps, lambda _, p: p - STEP * jax.grad(loss)(p), p)

    rows, done, target = [], 0, np.asarray(target @ np.asarray(basis, float))
    for step in np.unique(np.geomspace(1, STEPS, 40).astype(int)):
        p, done = advance(p, int(step) - done), int(step)
        now = np.asarray(p, float)
        cosine = now @ target / np.sqrt((now @ now + float(outside)) * (target @ target))
        rows.append([float(np.log(STEP * done)), float(1 - cosine)])
    return rows


def draw(flow, descent):
    """Plot 1 - cos for the exact flow and plain descent against log t, on logarithmic axes."""
    with style.style():
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        axes = figure.subplots()
        axes.loglog(*np.array(flow).T, color=style.BLUE, label="exact flow")
        axes.loglog(*np.array(descent).T, color=style.RED, linestyle=(0, (4, 1.5)), label="plain loop")
        axes.plot(*descent[-1], "o", color=style.RED, markersize=5)
        axes.annotate(
            f"{STEPS:,} steps",
            descent[-1],
            (-2, -6),
            textcoords="offset points",
            color=style.RED,
            va="top",
            ha="right",
        )
        axes.set(xlabel=r"$\log t$, where $t$ is the time of gradient flow")
        axes.set(ylabel=r"$1-\cos(p,\,p_\mathrm{mm})$")
        axes.legend(loc="lower left")
    return figure


def slider(scores, p):
    """Return the figure with a slider along the flow, as an HTML element for a page."""
    path = ja.dynamics.exact_flow(scores, p, until_norm=1e4, points=48)
    mm = ja.theory.max_margin(scores, path.selection)
    few = [int(x) for label in (1, -1) for x in np.flatnonzero(scores.corpus.targets == label)[:3]]
    return ja.explore(scores, path, mm, sequences=few, title="Gradient flow on p, up to its limit").figure()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the figure and its numbers")
    out = parser.parse_args().out
    params, corpus = problem()
    scores = ja.theory.scores.one_layer(params, corpus)
    path = ja.dynamics.exact_flow(scores, params.p, until_norm=1e4, points=200)
    mm = ja.theory.max_margin(scores, path.selection)
    distance = ja.theory.one_minus_cosine(path.p, mm.p)
    known = path.log_time > 1
    flow = np.stack([path.log_time, distance], axis=1)[known].tolist()
    descent = [row for row in loop(params, corpus, mm.p) if row[0] > 1]
    logs = [descent[-1][0], 60.0, float(path.log_time[-1])]
    at = np.exp(np.interp(np.log(logs), np.log(path.log_time[known]), np.log(distance[known])))
    numbers = {
        "loop": {"step": STEP, "steps": STEPS, "log_time": descent[-1][0], "distance": descent[-1][1]},
        "flow": [{"log_time": x, "distance": float(y)} for x, y in zip(logs, at, strict=True)],
        "norm at the end": float(path.norm[-1]),
        "relative duality gap": float(mm.duality_gap),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "flow.html").write_text(slider(scores, params.p), encoding="utf-8")
    (out / "reach.svg").write_bytes(style.svg(draw(flow, descent)))
    (out / "reach.json").write_text(json.dumps(numbers, indent=2) + "\n")
    print(json.dumps(numbers, indent=2))


if __name__ == "__main__":
    main()
