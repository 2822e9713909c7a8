"""Measure the discretisation error of normalised descent with autodiff, relative to the exact flow.

    python benchmarks/flow_against_loops.py --out results/flow_against_loops

The problem satisfies Assumption 1 (V = 50, n = 200, T = 8, d = 2048, one step of size 200 on E). The descent
loops follow common practice: the textbook E[x] model, autodiff, and normalised gradient steps of length 0.1,
in float32 and in float64. The loops run in the 50 coordinates of span(E). The part of p outside this span
never changes, so the restriction affects only the speed of the loops and the initial norm. The distance is
1 - cos between p and the certified max-margin direction for the tokens that the exact flow selects.
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

SIZES = {"vocab_size": 50, "relevant": 20, "length": 8, "sequences": 200}
STEP, STEPS, UNTIL = 0.1, 20_000, 1e6


def problem():
    """Return the parameters after one step on E, and the corpus."""
    data_key, model_key = jax.random.split(jax.random.fold_in(jax.random.key(0), 0))
    corpus = ja.data.assumption1(data_key, **SIZES)
    params = ja.models.one_layer.init(model_key, vocab_size=50, dim=2048, dtype=jnp.float64)
    return ja.dynamics.one_step(params, corpus, step_size=200.0), corpus


def loop(E, p, v, ids, mask, labels, target):
    """Run at most `STEPS` steps of normalised descent on p, and return rows of step, ‖p‖ and 1 - cos."""

    def loss(p):
        return ja.losses.logistic(
            ja.models.reference.outputs(ja.models.one_layer.Params(E, p, v), ids, mask), labels
        ).mean()

    @jax.jit
    def advance(p, steps):
        def step(_, p):
            gradient = jax.grad(loss)(p)
            norm = jnp.linalg.norm(gradient)
            return jnp.where(norm > 0, p - STEP * gradient / jnp.where(norm > 0, norm, 1), p)

        return jax.lax.fori_loop(0, steps, step, p)

    rows, done = [], 0
    for step in np.unique(np.geomspace(1, STEPS, 60).astype(int)):
        p, done = advance(p, int(step) - done), int(step)
        rows.append([done, float(jnp.linalg.norm(p)), float(ja.theory.one_minus_cosine(p, target))])
        if not jnp.linalg.norm(jax.grad(loss)(p)) > 0:
            break
    return rows


def draw(curves):
    """Plot 1 - cos against ‖p‖ on logarithmic axes, with one curve for each method."""
    with style.style():
        figure = Figure(figsize=(4.7, 3.1), layout="constrained")
        axes = figure.subplots()
        for (name, rows), colour in zip(curves.items(), style.DISTINCT, strict=False):
            _, norm, distance = np.array(rows).T
            axes.loglog(norm, distance, color=colour, label=name, marker=".", markersize=3)
        axes.set(xlabel=r"$\Vert p\Vert$", ylabel=r"$1-\cos(p,\,p_\mathrm{mm})$")
        axes.legend(loc="lower left")
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the figure and its numbers")
    out = parser.parse_args().out
    curves = {}
    with jax.enable_x64(True):
        params, corpus = jax.jit(problem)()
        path = ja.dynamics.exact_flow(ja.theory.scores.one_layer(params, corpus), params.p, until_norm=UNTIL)
        chosen = path.selection
        mm = ja.theory.max_margin(ja.theory.Scores(params.E, corpus), chosen)
        distance = ja.theory.one_minus_cosine(path.p, mm.p)
        curves["exact flow"] = np.stack([np.arange(len(distance)), path.norm, distance], 1).tolist()
        ids, mask = ja.models.reference.padded_sequences(corpus)
        basis = jnp.linalg.qr(params.E.T)[0]
        held = [params.E @ basis, basis.T @ params.p, basis.T @ params.v]
        for dtype in ("float32", "float64"):
            arrays = [x.astype(dtype) for x in held]
            curves[f"normalised steps, {dtype}"] = loop(*arrays, ids, mask, corpus.targets, mm.p @ basis)
    out.mkdir(parents=True, exist_ok=True)
    (out / "flow_against_loops.svg").write_bytes(style.svg(draw(curves)))
    summary = {}
    for name, rows in curves.items():
        last = dict(zip(("row", "norm", "distance"), rows[-1], strict=True))
        summary[name] = {"closest": min(row[2] for row in rows), "last": last}
    summary["relative duality gap of the direction"] = float(mm.duality_gap)
    (out / "flow_against_loops.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
