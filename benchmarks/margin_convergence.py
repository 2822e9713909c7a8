"""Theorem 4.3 for many seeds: exact gradient flow on p against the certified max-margin direction.

    python benchmarks/margin_convergence.py --seeds 64 --out results/benchmarks

Assumption 1 with V = 50, n = 200, T = 8, d = 2048; one step of size 200 on E, then the flow of p until
‖p‖ = 1e6. For every seed: the selection of the final p, the max-margin direction of that selection with its
certificate, and 1 - cos between the two.
"""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn as ja

SIZES = {"vocab_size": 50, "relevant": 20, "length": 8, "sequences": 200}
DIM, STEP_SIZE, UNTIL = 2048, 200.0, 1e6


def problem(seed):
    """Draw a corpus and the parameters after one step on E."""
    data_key, model_key = jax.random.split(jax.random.fold_in(jax.random.key(0), seed))
    corpus = ja.data.assumption1(data_key, **SIZES)
    params = ja.models.one_layer.init(model_key, vocab_size=50, dim=DIM, dtype=jnp.float64)
    return ja.dynamics.one_step(params, corpus, step_size=STEP_SIZE), corpus


def timed(function, *arguments):
    begin = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--out", type=Path, help="folder for margin_convergence_SEEDS.json")
    arguments = parser.parse_args()

    with jax.enable_x64(True):
        params, corpus = jax.jit(jax.vmap(problem))(jnp.arange(arguments.seeds))
        flow = partial(ja.dynamics.exact_flow, until_norm=UNTIL)
        path, first = timed(flow, params, corpus)
        _, again = timed(flow, params, corpus)
        final = path.p[:, -1]
        chosen = jax.jit(jax.vmap(ja.theory.selection))(final, params.E, corpus)
        important = jnp.arange(50) < SIZES["relevant"]
        selected = jax.vmap(lambda c, x: c.important_counts(x, important))(chosen, corpus)
        alone = jax.vmap(lambda c, x: x.bags.sum(c.mask.astype(jnp.int32))[0])(chosen, corpus)
        mm, solving = timed(ja.theory.max_margin_batch, params.E, corpus, chosen)
    away = ja.theory.one_minus_cosine(final, mm.p)
    result = {
        "seeds": arguments.seeds,
        "reached norm 1e6": int((np.asarray(path.norm[:, -1]) >= 0.99 * UNTIL).sum()),
        "feasible": int(np.asarray(mm.feasible).sum()),
        "important token selected in every sequence": int(np.asarray((selected == 1).all(1)).sum()),
        "nothing else selected": int(np.asarray((alone == 1).all(1)).sum()),
        "worst 1 - cos": float(np.max(away)),
        "median 1 - cos": float(np.median(away)),
        "worst relative duality gap": float(np.max(mm.duality_gap)),
        "median accepted steps": float(np.median(path.accepted)),
        "flow, first call with compilation, s": first,
        "flow, compiled, s": again,
        "max-margin with certificates, s": solving,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
    }
    for name, value in result.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        name = f"margin_convergence_{arguments.seeds}.json"
        (arguments.out / name).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
