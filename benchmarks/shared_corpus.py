"""Time the token-space part of ∂L/∂p for many seeds on a large corpus, in milliseconds per seed.

    python benchmarks/shared_corpus.py --data-dir DIRECTORY_OF_TFDS --out results/benchmarks

This part is ∂L/∂a for given scores a and values γ: the forward and backward pass of the logistic loss after
`attend`.
Without --data-dir, the corpus is synthetic, with Zipf-distributed tokens and the number of documents and
vocabulary size of IMDB. The variants are timed in float32, interleaved in one process, so that a drift in
speed does not affect their ratios:

- vmapped: `jax.vmap` over the seeds, so that one product with the counts serves all seeds;
- in turn: `jax.lax.map` over the seeds;
- scipy.sparse: an independent reference, which multiplies the CSR count matrix and its transpose by a matrix
  with one column per seed. It subtracts the same number from the scores of all sequences, so it works only
  for narrow ranges of scores.

Scores are normally distributed and scaled so that they span a given range. In float32, `attend` splits them
into bands of width 64. The error is the largest difference between the vmapped ∂L/∂a and float64 NumPy,
divided by the largest component of ∂L/∂a. The table shows the maximum over up to four seeds.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from imdb import folder_of_imdb

import jaxattn as ja

SPREADS = {"one band": 10.0, "two bands": 100.0, "four bands": 240.0, "1e4": 1e4}


def zipf_corpus():
    """Sample a synthetic corpus with the same number of documents and vocabulary size as IMDB."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.2, 0.6, 25_000), 10, 2_000).astype(int)
    weight = 1 / np.arange(1, 7_814)
    tokens = rng.choice(7_813, lengths.sum(), p=weight / weight.sum())
    return ja.data.from_flat(tokens, lengths, rng.choice([-1, 1], 25_000), vocab_size=7_813)


def entries(corpus):
    """Return the sequence index, token and count of each bag entry as NumPy arrays."""
    count = np.asarray(corpus.bags.count)
    owner = np.broadcast_to(np.asarray(corpus.bags.owner)[:, None], count.shape)
    there = count > 0
    return owner[there], np.asarray(corpus.bags.index)[there].astype(int), count[there].astype(float)


def gradient(scores, values, corpus):
    """Compute ∂L/∂a for one seed."""
    return jax.grad(
        lambda a: ja.losses.logistic(ja.attention.attend(corpus, a, values), corpus.targets).mean()
    )(scores)


vmapped = jax.jit(jax.vmap(gradient, in_axes=(0, 0, None)))
sequential = jax.jit(lambda a, g, corpus: jax.lax.map(lambda seed: gradient(*seed, corpus), (a, g)))


def scipy_gradient(matrix, transposed, labels):
    """Return a function that computes ∂L/∂a with scipy.sparse from (V, seeds) arrays of scores and values."""

    def compute(scores, values):
        weight = np.exp(scores - scores.max(axis=0))
        sums = matrix @ np.concatenate([weight, weight * values], axis=1)
        normaliser, moment = np.split(sums, 2, axis=1)
        f = moment / normaliser
        flow = -labels / (1 + np.exp(labels * f)) / len(labels) / normaliser
        pushed, force_on_z = np.split(transposed @ np.concatenate([flow, flow * f], axis=1), 2, axis=1)
        return weight * (values * pushed - force_on_z)

    return compute


def exact_gradient(corpus, scores, values):
    """Compute ∂L/∂a for one seed in float64, with scores relative to the top score of their sequence."""
    sequence, token, count = entries(corpus)
    order = np.argsort(sequence, kind="stable")
    sequence, token, count = sequence[order], token[order], count[order]
    n, labels = corpus.num_examples, np.asarray(corpus.targets, float)
    top = np.full(n, -np.inf)
    np.maximum.at(top, sequence, scores[token])
    weight = count * np.exp(scores[token] - top[sequence])
    q = weight / np.bincount(sequence, weight, n)[sequence]
    f = np.bincount(sequence, q * values[token], n)
    flow = -labels / (1 + np.exp(labels * f)) / n
    return np.bincount(token, q * flow[sequence] * (values[token] - f[sequence]), corpus.vocab_size)


def draw(seeds, spread, vocab_size):
    """Sample scores that span a given range, and values, both as (seeds, V) arrays."""
    rng = np.random.default_rng(seeds)
    scores, values = rng.normal(size=(2, seeds, vocab_size))
    scores *= spread / (scores.max(axis=1) - scores.min(axis=1))[:, None]
    return scores.astype(np.float32), values.astype(np.float32)


def timed(calls, repeats):
    """Run all calls in turn, `repeats` times each, and return lists of times in seconds by name."""
    times = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return times


def measure(corpus, compute, seeds, name, repeats):
    """Time each variant on scores with a given range, and return a row with times and the largest error."""
    scores, values = draw(seeds, SPREADS[name], corpus.vocab_size)
    a, g = jnp.asarray(scores), jnp.asarray(values)
    calls = {
        "vmapped": lambda: jax.block_until_ready(vmapped(a, g, corpus)),
        "in turn": lambda: jax.block_until_ready(sequential(a, g, corpus)),
    }
    if name == "one band":
        columns = np.ascontiguousarray(scores.T), np.ascontiguousarray(values.T)
        calls["scipy.sparse"] = lambda: compute(*columns)
    times = timed(calls, repeats)
    errors = []
    for mine, one, gamma in zip(vmapped(a, g, corpus)[:4], scores, values, strict=False):
        exact = exact_gradient(corpus, one.astype(float), gamma.astype(float))
        errors.append(float(np.abs(mine - exact).max() / np.abs(exact).max()))
    return {
        "seeds": seeds,
        "scores": name,
        "ms_per_seed": {how: 1e3 * statistics.median(each) / seeds for how, each in times.items()},
        "best_ms_per_seed": {how: 1e3 * min(each) / seeds for how, each in times.items()},
        "error": max(errors),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data-dir",
        type=folder_of_imdb,
        help="directory of tensorflow-datasets; by default a corpus is sampled",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder for shared_corpus.json and .md")
    arguments = parser.parse_args()

    if arguments.data_dir:
        source = ja.texts.Tfds(dataset="imdb_reviews", data_dir=arguments.data_dir, min_count=45)
        corpus, kind = source.load().splits.train, "IMDB"
    else:
        corpus, kind = zipf_corpus(), "Zipf"
    sequence, token, count = entries(corpus)
    shape = (corpus.num_examples, corpus.vocab_size)
    matrix = scipy.sparse.csr_array((count.astype(np.float32), (sequence, token)), shape=shape)
    labels = np.asarray(corpus.targets, np.float32)[:, None]
    compute = scipy_gradient(matrix, matrix.T.tocsr(), labels)

    lines = [
        f"{kind}: n = {shape[0]:,}, V = {shape[1]:,}, {len(count):,} (sequence, token) pairs, float32, "
        f"{os.cpu_count()} CPU cores, jax {jax.__version__}; ms a seed, "
        f"median / best of {arguments.repeats}.",
        "",
        "| scores | seeds | vmapped | in turn | scipy.sparse | error |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    rows = []
    for name in SPREADS:
        for seeds in arguments.seeds:
            rows.append(row := measure(corpus, compute, seeds, name, arguments.repeats))
            median, best = row["ms_per_seed"], row["best_ms_per_seed"]
            shown = " | ".join(
                f"{median[how]:.2f} / {best[how]:.2f}" if how in median else ""
                for how in ("vmapped", "in turn", "scipy.sparse")
            )
            lines.append(f"| {name} | {seeds} | {shown} | {row['error']:.0e} |")
            print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        result = {
            "corpus": {"kind": kind, "sequences": shape[0], "vocab_size": shape[1], "pairs": len(count)},
            "rows": rows,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__},
        }
        (arguments.out / "shared_corpus.json").write_text(json.dumps(result, indent=2) + "\n")
        (arguments.out / "shared_corpus.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
