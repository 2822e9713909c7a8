"""Time a step on p with a separate corpus per seed, and the two sparse products in every such step.

    python benchmarks/step_against_scipy.py --out results/benchmarks

scipy.sparse multiplies the count matrix and its transpose by two columns each, on one core. A step of the
engine consists of these two products, the softmax, E p and the update. The step and the products are timed in
turn in one process. The output contains the median times, and the median of the ratios of adjacent runs.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jaxattn as ja
from jaxattn.lab.study import seed

SIZES = (
    {"vocab_size": 200, "length": 16, "sequences": 512},
    {"vocab_size": 200, "length": 24, "sequences": 2000},
)


def counts_of(corpus):
    """Return the count matrix and its transpose in CSR format."""
    bags = corpus.bags
    owner = np.repeat(np.asarray(bags.owner), bags.index.shape[1])
    entries = np.asarray(bags.count, np.float32).ravel(), (owner, np.asarray(bags.index).ravel())
    rows = scipy.sparse.csr_matrix(entries, shape=(corpus.num_examples, corpus.vocab_size))
    rows.eliminate_zeros()
    return rows, rows.T.tocsr()


def products(corpus):
    """Return a function that times products with the count matrix and its transpose, in microseconds."""
    rows, columns = counts_of(corpus)
    rng = np.random.default_rng(0)
    left = rng.random((corpus.vocab_size, 2), np.float32)
    right = rng.random((corpus.num_examples, 2), np.float32)

    def run(repeats):
        began = time.perf_counter()
        for _ in range(repeats):
            rows @ left
            columns @ right
        return 1e6 * (time.perf_counter() - began) / repeats

    return run


def steps(study, corpora):
    """Return a function that times steps of the phase of a study, in microseconds per step."""
    setting = study.base
    _, key, _ = seed.keys(0)
    params = jax.jit(lambda: seed.initial_params(setting, corpora, key, ()))()
    initial_state = seed.begin_phase(setting, 0, params, corpora, key)

    @jax.jit
    def advance(carried, corpora, number):
        one = lambda *given: seed.advance(setting, 0, *given, number)  # noqa: E731
        return jax.vmap(one)(carried, corpora)

    runs = jax.tree.map(lambda x: jnp.asarray(x)[None], (initial_state, corpora))

    def run(number):
        began = time.perf_counter()
        jax.block_until_ready(advance(*runs, jnp.int32(number)))
        return 1e6 * (time.perf_counter() - began) / number

    run(1)
    return run


def measure(sizes, number, repeats):
    """Return the time of a step, the time of the two sparse products, and their ratio for a corpus size."""
    study = ja.Study(
        name="step",
        data=ja.data.Independent(relevant=20, **sizes),
        model=ja.models.OneLayer(dim=2048),
        phases=[ja.dynamics.Descent(name="query", train=["p"], optimizer="sgd", step_size=0.1, steps=number)],
    )
    data_key, _, _ = seed.keys(0)
    corpora = jax.jit(lambda: seed.draw_data(study.base, data_key))()
    ours, theirs = steps(study, corpora), products(corpora.train)
    pairs = [(ours(number), theirs(number)) for _ in range(repeats)]
    step, two = (statistics.median(x) for x in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    least = min(a for a, _ in pairs) / min(b for _, b in pairs)
    return sizes | {
        "step_us": round(step, 1),
        "scipy_us": round(two, 1),
        "ratio": round(ratio, 2),
        "ratio_of_least": round(least, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder for step_against_scipy.json")
    given = parser.parse_args()
    rows = []
    for sizes in SIZES:
        rows.append(measure(sizes, given.steps, given.repeats))
        print(rows[-1], flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        found = {"jax": jax.__version__, "processor": platform.machine(), "rows": rows}
        (given.out / "step_against_scipy.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
