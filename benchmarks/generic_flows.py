"""Compare joint and full flows on generic small problems with reference integrations by NumPy and SciPy.

    python benchmarks/generic_flows.py --seeds 50        # 50 problems of each of 6 kinds, both flows
    python benchmarks/generic_flows.py --seeds 5 --kinds flipped --flows full

The kinds of problems differ in the data (one or more relevant tokens, independent labels, flipped labels) and
in d, which is smaller or larger than V. The reference integrates the same equations with respect to arc
length, using a plain softmax (`joint_ode.py`, and the gradient below for E, p and v). Every row of a path
that is within the range of the reference must lie on the reference path, whatever the status of the path. The
table lists the final statuses of the paths and the largest distance for each kind. The command fails if a
distance exceeds `LIMIT`.
"""

import argparse
import sys
import time
from collections import Counter
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from joint_ode import follow
from scipy.integrate import Radau

import jaxattn as ja
from jaxattn.lab.pages.layout import markdown
from jaxattn.models.reference import padded_sequences

# Rounding of v/‖v‖ by 1e-16 changes weights by 1e-7 at log ‖v‖ = 20.
UNTIL_LOG_NORM, UNTIL_LOG_LOSS = 19.6, -20.0
# Limit on the distance of a point from the reference, relative to 1 + the length of the point. The reference
# has a tolerance of 1e-8 per step, and its path is a polyline with 20 points per step.
LIMIT = 1e-3
POINTS_PER_STEP = 20


def flipped(key, **sizes):
    """Sample data that satisfy Assumption 1, and flip the labels of the first two sequences."""
    corpus = ja.data.assumption1(key, **sizes)
    return corpus.replace(targets=corpus.targets.at[:2].multiply(-1))


# Generator with its sizes, d, and the size of the step on E before the joint flow.
KINDS = {
    "one relevant": (
        ja.data.assumption1,
        {"vocab_size": 12, "relevant": 4, "length": 4, "sequences": 16},
        24,
        60.0,
    ),
    "one relevant, d < V": (
        ja.data.assumption1,
        {"vocab_size": 10, "relevant": 6, "length": 4, "sequences": 12},
        6,
        5.0,
    ),
    "flipped": (flipped, {"vocab_size": 12, "relevant": 4, "length": 4, "sequences": 12}, 16, 30.0),
    "two relevant, d < V": (
        partial(ja.data.multi_relevant, relevant_per_sequence=2),
        {"vocab_size": 10, "relevant": 6, "length": 4, "sequences": 12},
        8,
        10.0,
    ),
    "independent": (
        ja.data.independent,
        {"vocab_size": 8, "relevant": 6, "length": 3, "sequences": 8},
        12,
        2.0,
    ),
    "independent, d < V": (
        ja.data.independent,
        {"vocab_size": 8, "relevant": 6, "length": 3, "sequences": 6},
        4,
        1.0,
    ),
}


def problems(kind, seeds, stepped):
    """Sample corpora and parameters. If `stepped` is True, take one step on E."""
    generate, sizes, dim, size = KINDS[kind]

    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = generate(data_key, **sizes)
        params = ja.models.one_layer.init(
            model_key, vocab_size=sizes["vocab_size"], dim=dim, dtype=jnp.float64
        )
        return (ja.dynamics.one_step(params, corpus, step_size=size) if stepped else params), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(2026), seeds))


def distances(points, path):
    """Return the distances of m points from a polyline as an (m,) array, relative to 1 + ‖point‖."""
    start, along = path[:-1], np.diff(path, axis=0)
    squared = np.maximum((along**2).sum(1), 1e-300)
    found = []
    for point in points:
        fraction = np.clip(((point - start) * along).sum(1) / squared, 0, 1)
        nearest = np.linalg.norm(start + fraction[:, None] * along - point, axis=1).min()
        found.append(nearest / (1 + np.linalg.norm(point)))
    return np.array(found)


def joint_distances(params, corpus, path):
    """Return the distances of the rows of a joint path from the reference, and the number of rows.

    Distances are measured in (p, log ‖v‖). Rows beyond the end of the reference are omitted.
    """
    log_norm = np.asarray(path.log_v_norm)
    rows = np.flatnonzero(np.maximum.accumulate(log_norm) < UNTIL_LOG_NORM)
    until = min(UNTIL_LOG_NORM, log_norm.max() + 1e-3)
    E, p, v = (np.asarray(x) for x in (params.E, params.p, params.v))
    ids, mask = map(np.asarray, padded_sequences(corpus))
    found = follow(E, p, v, ids, mask, np.asarray(corpus.targets), until, evaluations=4_000)
    times = np.asarray(found.solution.ts)
    times = np.unique(np.concatenate([np.linspace(a, b, POINTS_PER_STEP) for a, b in pairwise(times)]))
    states = found.solution(times).T
    m = (states.shape[1] - 1) // 2
    reference = np.concatenate([states[:, :m] @ found.basis, states[:, -1:]], axis=1)
    points = np.concatenate([np.asarray(path.p)[rows], log_norm[rows, None]], axis=1)
    # A reference that ran out of evaluations covers only the rows up to its own last point.
    sizes, reached = (
        np.stack([np.linalg.norm(x[:, :-1], axis=1), x[:, -1]], axis=1) for x in (points, reference)
    )
    covered = (np.maximum.accumulate(sizes) <= reached.max(axis=0)).all(axis=1)
    return distances(points[covered], reference), covered.sum()


def gradient(theta, shape, ids, mask, labels):
    """Compute log L and the normalised -∂L/∂(E, p, v) for one state by the formulas in the paper."""
    V, m = shape
    E, p, v = theta[: V * m].reshape(V, m), theta[V * m : -m], theta[-m:]
    scores = np.where(mask, (E @ p)[ids], -np.inf)
    q = np.exp(scores - scores.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    values = (E @ v)[ids]
    logits = (q * values).sum(axis=1)
    log_losses = np.log(np.logaddexp(0, -labels * logits))
    log_weights = -np.logaddexp(0, labels * logits)
    weights = labels * np.exp(log_weights - log_weights.max())
    centred = q * (values - logits[:, None])
    on_scores, on_values = (np.zeros(V) for _ in range(2))
    np.add.at(on_scores, ids, weights[:, None] * centred)
    np.add.at(on_values, ids, weights[:, None] * q)
    force = np.concatenate(
        [(np.outer(on_scores, p) + np.outer(on_values, v)).ravel(), on_scores @ E, on_values @ E]
    )
    highest = log_losses.max()
    return highest + np.log(np.exp(log_losses - highest).mean()), force / np.linalg.norm(force)


def full_distances(params, corpus, path, tolerance=1e-8, evaluations=60_000):
    """Return the distances of the rows of a full path from the reference, and the number of rows.

    Distances are measured in (E, p, v). Rows beyond the end of the reference are omitted.
    """
    basis = np.asarray(path.basis)
    ids, mask = map(np.asarray, padded_sequences(corpus))
    labels = np.asarray(corpus.targets)
    states = np.concatenate(
        [np.asarray(path.E).reshape(len(path.E), -1), np.asarray(path.p), np.asarray(path.v)], axis=1
    )
    start = np.concatenate([(np.asarray(x) @ basis).ravel() for x in (params.E, params.p, params.v)])
    shape = (params.E.shape[0], basis.shape[1])
    data = shape, ids, mask, labels
    solver = Radau(lambda _, x: gradient(x, *data)[1], 0.0, start, np.inf, rtol=tolerance, atol=tolerance)
    reference, until = [start], max(float(np.asarray(path.log_loss).min()), UNTIL_LOG_LOSS)
    while solver.status == "running" and solver.nfev < evaluations and gradient(solver.y, *data)[0] > until:
        solver.step()
        between = solver.dense_output()
        times = np.linspace(solver.t_old, solver.t, POINTS_PER_STEP)[1:]
        reference.extend(between(times).T)
    lowest = gradient(solver.y, *data)[0]
    rows = np.flatnonzero(np.asarray(path.log_loss) >= lowest)
    return distances(states[rows], np.array(reference)), len(rows)


def measure(kind, seeds, flow):
    """Integrate the flow on all problems of a kind, and return a row of the results table."""
    params, corpora = problems(kind, seeds, stepped=flow == "joint")
    if flow == "joint":
        paths = ja.dynamics.joint_flow(params, corpora, until_norm=1e3, points=40, max_steps=4000)
    else:
        paths = ja.dynamics.full_flow(
            params, corpora, until_log_loss=UNTIL_LOG_LOSS, points=24, max_steps=3000
        )
    paths, params, corpora = jax.device_get((paths, params, corpora))
    compare = joint_distances if flow == "joint" else full_distances
    off, rows = [], 0
    for seed in range(seeds):
        apart, number = compare(*jax.tree.map(lambda x, seed=seed: x[seed], (params, corpora, paths)))
        off.append(apart.max())
        rows += int(number)
        if off[-1] > LIMIT:
            stop = np.asarray(paths.stop)[seed]
            print(f"{kind}, {flow}, seed {seed}: {stop}, distance {off[-1]:.2g}", file=sys.stderr, flush=True)
    ends = Counter(np.asarray(paths.stop).tolist())
    return {
        "flow": flow,
        "data": kind,
        "paths": seeds,
        "end": ", ".join(f"{number} {name}" for name, number in sorted(ends.items())),
        "rows compared": rows,
        "median distance": f"{np.median(off):.1e}",
        "largest": f"{max(off):.1e}",
        "off": sum(x > LIMIT for x in off),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--flows", nargs="+", choices=["joint", "full"], default=["joint", "full"])
    given = parser.parse_args()
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: must be at least 1")
    rows = []
    with jax.enable_x64(True):
        for flow in given.flows:
            for kind in given.kinds:
                start = time.perf_counter()
                rows.append(measure(kind, given.seeds, flow))
                print(rows[-1], f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(markdown(pd.DataFrame(rows)))
    return int(any(row["off"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
