"""Measure the run time, final norm and limit certificate of the exact flow of p on film reviews.

    python benchmarks/flow_on_texts.py --data-dir DIRECTORY_OF_TFDS --out results/benchmarks
    python benchmarks/flow_on_texts.py --data-dir DIRECTORY_OF_TFDS --out results/benchmarks \
        --until-norm 10 --step
    python benchmarks/flow_on_texts.py --data-dir DIRECTORY_OF_TFDS --out results/benchmarks \
        --reviews 25000 --min-count 40 --dim 1024 --until-norm 1000

The data are the first IMDB reviews, with the words that occur at least --min-count times in them. The flow
starts after one step on E. The path is computed in legs, each of which starts at the end of the previous leg,
to show the cost of each decade of ‖p‖.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from imdb import folder_of_imdb

import jaxattn as ja
from jaxattn.dynamics.flows.coordinates import coordinates
from jaxattn.dynamics.flows.stiff import by_factors


def problem(given):
    """Return the parameters after one step on E, and the corpus."""
    split = f"train[:{given.reviews}]" if given.reviews < 25_000 else "train"
    source = ja.texts.Tfds(
        dataset="imdb_reviews", data_dir=given.data_dir, train=split, test="", min_count=given.min_count
    )
    corpus = source.load(lambda *_: None).splits.train
    model = ja.models.OneLayer(dim=given.dim).in_span()
    params = model.init(jax.random.key(given.seed), corpus, dtype=jnp.float64)
    return ja.dynamics.one_step(params, corpus, step_size=given.step_size), corpus


def follow(scores, p, given):
    """Integrate the flow in legs of increasing ‖p‖, and return a row per leg and the path of the last leg."""
    legs, norm, begin, path = [], given.first_norm, time.perf_counter(), None
    while True:
        norm = min(norm, given.until_norm)
        started, cpu = time.perf_counter(), time.process_time()
        path = jax.block_until_ready(
            ja.dynamics.exact_flow(
                scores,
                p,
                until_norm=norm,
                points=8,
                rtol=given.rtol,
                gradient_rtol=given.gradient_rtol,
                max_steps=given.max_steps,
            )
        )
        p = path.p[-1]
        legs.append(
            {
                "to ‖p‖": float(path.norm[-1]),
                "ended by": path.stop,
                "steps": int(path.accepted),
                "thrown away": int(path.rejected),
                "s": round(time.perf_counter() - started, 1),
                "CPU s": round(time.process_time() - cpu, 1),
                "log ‖∂L/∂p‖": float(path.log_gradient_norm[-1]),
                "reviews with a tie": int((np.asarray(path.selection.counts(scores.corpus)) > 1).sum()),
            }
        )
        print(json.dumps(legs[-1], ensure_ascii=False), flush=True)
        out_of_time = time.perf_counter() - begin > given.budget
        if path.stop not in ("norm", "step_budget") or path.norm[-1] >= given.until_norm or out_of_time:
            return legs, path
        if path.stop == "norm":
            norm *= given.ratio


def one_step(scores, p, h):
    """Time the linear algebra for a step of length h at p, with and without forming the Jacobian."""
    flow = jax.jit(coordinates)(scores.keys, p, scores.values, scores.corpus)
    local = jax.jit(lambda flow: flow.at(flow.zero))(flow)
    c = jnp.asarray(h / 4)

    def six(solver):
        return jax.lax.fori_loop(0, 6, lambda _, at: solver.solve(*at), (local.velocity, solver.known))[0]

    def products(flow, jacobian, c):
        return six(flow.solver(jacobian, c))

    def matrix(flow, jacobian, c):
        whole, _ = flow._matrix(jacobian.velocity, jacobian.size, jacobian.force)
        return six(by_factors(whole, c))

    found, row = {}, {"h": h}
    for name, compute in (("by products", products), ("whole Jacobian", matrix)):
        compute = jax.jit(compute).lower(flow, local.jacobian, c).compile()
        times = []
        for _ in range(3):
            wall, cpu = time.perf_counter(), time.process_time()
            found[name] = np.asarray(jax.block_until_ready(compute(flow, local.jacobian, c)))
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        row[name] = {"s": round(min(times)[0], 3), "CPU s": round(min(cpu for _, cpu in times), 3)}
    apart = found["by products"] - found["whole Jacobian"]
    row["difference of the answers"] = float(np.linalg.norm(apart) / np.linalg.norm(found["whole Jacobian"]))
    row["whole over products, CPU"] = round(row["whole Jacobian"]["CPU s"] / row["by products"]["CPU s"], 2)
    return row


def left_of_the_forces(scores, path):
    """Compute ‖∂L/∂p‖ at the end of a path, relative to an upper bound.

    The bound is (max_s ‖E_s‖) · Σ_{X,s} |∂L_X/∂a_s|, with a sum over reviews X and tokens s.
    """
    flow = jax.jit(coordinates)(scores.keys, path.p[-1], scores.values, scores.corpus)
    log_sum = jax.jit(lambda flow: flow.log_gross(flow.zero) - jnp.log(flow.unit))(flow)
    return float(jnp.exp(path.log_gradient_norm[-1] - log_sum))


def certificate(scores, path):
    """Certify the limit from the end of a path, and return properties of the certificate."""
    started = time.perf_counter()
    p, selection = jax.device_get((path.p[-1], path.selection))
    found = ja.theory.certify_limit(jax.device_get(scores), p, selection)
    return {
        "certificate holds": found.holds,
        "1 - cos": float(ja.theory.one_minus_cosine(p, found.direction.p)),
        "duality gap": float(found.direction.duality_gap),
        "margin": float(found.direction.margin),
        "support pairs": len(found.direction.pairs),
        "distinct pairs": int(found.direction.num_pairs),
        "tied tokens beside their leader": len(found.direction.ties),
        "gradient of the tied part": float(found.gradient),
        "its curvature": float(found.curvature),
        "loose directions are isolated": found.isolated,
        "drawn": float(found.attracting_rate),
        "idle": float(found.cancelled_rate),
        "reason": found.direction.reason,
        "certificate, s": round(time.perf_counter() - started, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data-dir", type=folder_of_imdb, required=True, help="directory of tensorflow-datasets"
    )
    parser.add_argument("--reviews", type=int, default=2000, help="number of reviews")
    parser.add_argument("--min-count", type=int, default=20, help="minimum number of occurrences of a word")
    parser.add_argument("--dim", type=int, default=2048, help="d")
    parser.add_argument("--step-size", type=float, default=5000.0, help="size of the one step on E")
    parser.add_argument("--seed", type=int, default=0, help="seed of the parameters")
    parser.add_argument("--until-norm", type=float, default=1e6, help="final ‖p‖")
    parser.add_argument("--first-norm", type=float, default=10.0, help="‖p‖ at the end of the first leg")
    parser.add_argument(
        "--ratio", type=float, default=10.0, help="ratio of ‖p‖ at the ends of successive legs"
    )
    parser.add_argument("--rtol", type=float, default=1e-5, help="error tolerance per step")
    parser.add_argument(
        "--gradient-rtol", type=float, default=0.01, help="tolerance of the gradient; inf: none"
    )
    parser.add_argument("--max-steps", type=int, default=10_000, help="maximum number of steps per leg")
    parser.add_argument("--budget", type=float, default=1800.0, help="seconds after which no leg starts")
    parser.add_argument("--step", action="store_true", help="time the linear algebra of a step at the end")
    parser.add_argument("--out", type=Path, help="folder for flow_on_texts_REVIEWS_to_NORM.json")
    given = parser.parse_args()
    with jax.enable_x64(True):
        params, corpus = problem(given)
        scores = ja.theory.scores.one_layer(params, corpus)
        print(
            corpus, f"E {params.E.shape}, largest |E·v| {float(jnp.abs(scores.values).max()):.3g}", flush=True
        )
        begin = time.perf_counter()
        legs, path = follow(scores, params.p, given)
        took = time.perf_counter() - begin
        far = path.stop == "norm" and path.norm[-1] >= 1e4
        found = {"left of the forces": left_of_the_forces(scores, path)}
        found |= certificate(scores, path) if far else {}
        if given.step:
            length = float(path.arc_length[-1]) / max(int(path.accepted), 1)
            found["linear algebra of a step"] = one_step(scores, path.p[-1], round(length, 4))
    row = {
        "reviews": given.reviews,
        "vocabulary": corpus.vocab_size,
        "d": given.dim,
        "step size": given.step_size,
        "rtol": given.rtol,
        "gradient rtol": str(given.gradient_rtol),
        "seed": given.seed,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "‖p‖": float(path.norm[-1]),
        "ended by": path.stop,
        "steps": sum(leg["steps"] + leg["thrown away"] for leg in legs),
        "flow, compilation included, s": round(took, 1),
        "CPU s": round(sum(leg["CPU s"] for leg in legs), 1),
        **found,
        "legs": legs,
    }
    print(json.dumps(row, indent=2, ensure_ascii=False))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(row, indent=2, ensure_ascii=False) + "\n"
        until = f"{given.until_norm:g}".replace("e+0", "e")
        until += "_path" if math.isinf(given.gradient_rtol) else ""
        (given.out / f"flow_on_texts_{given.reviews}_to_{until}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
