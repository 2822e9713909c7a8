"""Time max-margin solvers on many small problems at once, and on one problem as large as IMDB.

    python benchmarks/max_margin.py --out results/benchmarks

- batch: Assumption 1 with V = 50, n = 200, T = 8, d = 2,048 after one step of size η0 = 200, with all
  relevant tokens selected. Up to 100 problems are also solved one by one with the exact method, and the
  largest difference between the solutions is reported.
- large: random sequences with Zipf frequencies, n = 25,000, V = 7,800, d = 2,048, E after one step. There are
  four selections: of the initial p; of a p whose scores approximate the posterior difference (many selected
  tokens); of random scores, which E may be unable to produce; and of a random token of each sequence, which
  no scores can produce.
"""

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn as ja

DIM = 2048


def batch_problem(seeds, relevant=10, vocab=50, step=200.0):
    """Return embeddings after one step, corpora, and selections of all relevant tokens, for many seeds."""
    keys = jax.random.split(jax.random.key(0), seeds)
    corpora = jax.vmap(
        lambda key: ja.data.assumption1(key, vocab_size=vocab, relevant=relevant, length=8, sequences=200)
    )(keys)
    alpha = np.asarray(jax.vmap(ja.data.average_signed_frequency)(corpora))
    params = jax.vmap(lambda key: ja.models.one_layer.init(key, vocab_size=vocab, dim=DIM))(keys)
    E = np.asarray(params.E) + step / 2 * alpha[:, :, None] * np.asarray(params.v)[:, None, :]
    chosen = jax.vmap(lambda corpus: ja.theory.selection_from_tokens(jnp.arange(vocab) < relevant, corpus))(
        corpora
    )
    return E, corpora, chosen


def measure_batch(seeds, compare):
    """Time batched solves for all seeds, with and without compilation.

    With `compare`, each problem is also solved with the exact method, and the solutions are compared.
    """
    E, corpora, chosen = batch_problem(seeds)
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        solution = ja.theory.max_margin_batch(ja.theory.Scores(E, corpora), chosen)
        times.append(time.perf_counter() - begin)
    result = {
        "seeds": seeds,
        "pairs": [int(solution.num_pairs.min()), int(solution.num_pairs.max())],
        "first_s": times[0],
        "again_s": times[1],
        "solved": int((solution.status == 0).sum()),
        "largest_gap": float(solution.duality_gap.max()),
    }
    if compare:
        begin = time.perf_counter()
        exact = [
            ja.theory.max_margin(
                ja.theory.Scores(E[i], jax.tree.map(lambda x, i=i: x[i], corpora)),
                ja.theory.Selection(chosen.mask[i]),
            )
            for i in range(seeds)
        ]
        result["exact_s"] = time.perf_counter() - begin
        result["difference"] = max(
            float(np.linalg.norm(solution.p[i] - one.p) / np.linalg.norm(one.p))
            for i, one in enumerate(exact)
        )
    return result


def large_problem(seed=0, sequences=25_000, vocab=7_800, step=5_000.0):
    """Sample a corpus with Zipf frequencies that differ between the labels, and compute E after one step."""
    rng = np.random.default_rng(seed)
    frequency, tilt = 1 / (np.arange(vocab) + 2.7), 0.3 * rng.normal(size=vocab)
    lengths = np.clip(rng.lognormal(np.log(180), 0.6, sequences).astype(int), 10, 1000)
    labels = np.where(np.arange(sequences) % 2 == 0, 1, -1)
    tokens = np.empty(lengths.sum(), np.int64)
    for label in (1, -1):
        share = frequency * np.exp(label * tilt)
        where = np.repeat(labels == label, lengths)
        tokens[where] = rng.choice(vocab, where.sum(), p=share / share.sum())
    corpus = ja.data.from_flat(tokens, lengths, labels, vocab_size=vocab)
    params = ja.models.one_layer.init(jax.random.key(seed), vocab_size=vocab, dim=DIM)
    alpha = np.asarray(ja.data.average_signed_frequency(corpus), np.float64)
    E = np.asarray(params.E, np.float64) + step / 2 * alpha[:, None] * np.asarray(params.v, np.float64)
    return E, np.asarray(params.p, np.float64), corpus, rng


def large_selections(E, p, corpus, rng):
    """Yield the name and the selection of each case of the large problem."""
    identity = np.ones(1)
    count = np.asarray(ja.data.token_counts(corpus))
    difference = np.abs(np.nan_to_num(np.asarray(ja.data.posterior_difference(corpus)))) * (count > 20)
    aimed = np.linalg.lstsq(E, difference, rcond=None)[0]
    yield "initial p", ja.theory.selection(p, ja.theory.Scores(E, corpus))
    yield "p aimed at the posterior difference", ja.theory.selection(aimed, ja.theory.Scores(E, corpus))
    yield (
        "random scores",
        ja.theory.selection(identity, ja.theory.Scores(rng.normal(size=(len(E), 1)), corpus)),
    )
    drawn = rng.random(corpus.bags.index.shape, np.float32) * (np.asarray(corpus.bags.count) > 0)
    top = np.asarray(corpus.bags.max(jnp.asarray(drawn)))
    yield (
        "random tokens",
        ja.theory.Selection(jnp.asarray(drawn >= top[np.asarray(corpus.bags.owner)][:, None])),
    )


def measure_large(tolerance):
    """Time the solver (constraint generation) on each selection of the large problem."""
    E, p, corpus, rng = large_problem()
    results = []
    for name, chosen in large_selections(E, p, corpus, rng):
        begin = time.perf_counter()
        solution = ja.theory.max_margin(ja.theory.Scores(E, corpus), chosen, tolerance=tolerance)
        results.append(
            {
                "selection": name,
                "selected_tokens": int(np.asarray(chosen.tokens(corpus)).sum()),
                "pairs": int(solution.num_pairs),
                "support": int((solution.multipliers > 0).sum()),
                "seconds": time.perf_counter() - begin,
                "iterations": int(solution.iterations),
                "margin": float(solution.margin),
                "margin_bound": float(solution.margin_bound),
                "gap": float(solution.duality_gap),
                "reason": solution.reason,
            }
        )
        print(json.dumps(results[-1], ensure_ascii=False), flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--tolerance", type=float, default=1e-10, help="relative gap of the large problem")
    parser.add_argument("--only", choices=["batch", "large"])
    parser.add_argument("--out", type=Path, help="folder for max_margin.json")
    arguments = parser.parse_args()

    result = {"batch": [], "large": []}
    if arguments.only != "large":
        for seeds in arguments.seeds:
            result["batch"].append(measure_batch(seeds, compare=seeds <= 100))
            print(json.dumps(result["batch"][-1]), flush=True)
    if arguments.only != "batch":
        result["large"] = measure_large(arguments.tolerance)
    result["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result["machine"] = {"processor": platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__}
    print(f"peak memory {result['peak_memory_mb']:,.0f} MB")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "max_margin.json").write_text(
            json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        )


if __name__ == "__main__":
    main()
