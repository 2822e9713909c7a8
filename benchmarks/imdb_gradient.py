"""Compare the run time of a full-batch gradient with respect to p on IMDB with a lower bound.

    python benchmarks/imdb_gradient.py --data-dir DIRECTORY_OF_TFDS --out results/benchmarks

All rows of the table are measured in turn in one process, so that a drift in speed does not affect ratios:

- the lower bound: the three products with E that any method requires, E p, E v and (∂L/∂a)ᵀ E;
- jaxattn: ∂L/∂p, and the gradient with respect to E, p and v together;
- a joint step: E, p and v by Adam, compared with the required memory traffic: E and its two moments read and
  written, and E read for two products forwards and two backwards.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from imdb import folder_of_imdb

import jaxattn as ja

DIM = 2048
FLOOR, JOINT_FLOOR = (
    "three products with E (lower bound)",
    "four products, E and two moments read and written (lower bound)",
)
JOINT, STEPS = "Adam step on E, p and v", 4


def seconds(function, repeats):
    """Call a blocking function `repeats` times, and return the times in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return times


def load_times(data_dir):
    """Return the training split and the times to load both splits, first without and then with a cache."""
    source = ja.texts.Tfds(dataset="imdb_reviews", data_dir=data_dir, min_count=45)
    with tempfile.TemporaryDirectory() as cache:
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            loaded = ja.texts.load_text(source, cache_dir=cache)
            jax.block_until_ready(loaded.train)
            times.append(time.perf_counter() - begin)
    return loaded.train, times


def joint_rows(params, corpus):
    """Return two functions by name: one takes `STEPS` joint Adam steps, the other is their lower bound.

    The lower bound consists of the required memory traffic and products with E.
    """
    adam = ja.dynamics.Descent(
        name="adam",
        train=("E", "p", "v"),
        optimizer="adam",
        step_size=3e-4,
        options={"eps": 3e-8},
        steps=STEPS,
    )
    start = ja.dynamics.run(adam, ja.dynamics.Task(data=corpus), params, steps=0)
    advance = jax.jit(lambda state, c, n: adam.advance(ja.dynamics.Task(data=c), state, n), donate_argnums=0)
    scaled = jax.jit(
        lambda arrays, n: jax.lax.fori_loop(0, n, lambda _, each: [0.999 * x for x in each], arrays),
        donate_argnums=0,
    )
    products = jax.jit(lambda E, p, v, a, b: (E @ p, E @ v, a @ E, b @ E))
    a, b = ja.models.one_layer.scores_and_values(params)
    # Pass copies, because donated arrays are deleted.
    kept = jax.tree.map(jax.numpy.copy, {"state": start, "arrays": [params.E] * 3})

    def joint():
        kept["state"] = advance(kept["state"], corpus, STEPS)
        return kept["state"]

    def floor():
        kept["arrays"] = scaled(kept["arrays"], STEPS)
        for _ in range(STEPS):
            found = products(params.E, params.p, params.v, a, b)
        return kept["arrays"], found

    return {JOINT_FLOOR: floor, JOINT: joint}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data-dir", type=folder_of_imdb, required=True, help="directory of tensorflow-datasets"
    )
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--out", type=Path, help="folder for imdb_gradient.json and .md")
    arguments = parser.parse_args()

    corpus, (cold, cached) = load_times(arguments.data_dir)
    params = ja.models.one_layer.init(jax.random.key(0), vocab_size=corpus.vocab_size, dim=DIM)
    scores, values = ja.models.one_layer.scores_and_values(params)
    products = jax.jit(lambda E, p, v, a: (E @ p, E @ v, a @ E))
    gradient_p = jax.jit(lambda params, c: ja.dynamics.loss_and_gradients(params, c, ("p",)))
    gradient_all = jax.jit(lambda params, c: ja.dynamics.loss_and_gradients(params, c, ("E", "p", "v")))
    # The first call writes ∂L/∂E to newly allocated memory; the second call reuses it.
    over = jax.jit(lambda old, params, c: gradient_all(params, c), donate_argnums=0, keep_unused=True)
    kept = [gradient_all(params, corpus)]

    def gradient_over():
        kept[0] = over(kept[0], params, corpus)
        return kept[0]

    attend = ja.attention.attend
    tokens_only = jax.jit(jax.grad(lambda a, g, c: ja.losses.logistic(attend(c, a, g), c.targets).mean()))
    rows = {
        FLOOR: lambda: products(params.E, params.p, params.v, scores),
        "∂L/∂p": lambda: gradient_p(params, corpus),
        "token-space part of ∂L/∂p": lambda: tokens_only(scores, values, corpus),
        "∂L/∂E, ∂L/∂p and ∂L/∂v": lambda: gradient_all(params, corpus),
        "∂L/∂E, ∂L/∂p and ∂L/∂v, in reused memory": gradient_over,
        "∂L/∂p, scores that differ by up to 1e4": lambda: gradient_p(
            params.replace(p=3e3 * params.p), corpus
        ),
        **joint_rows(params, corpus),
    }
    calls = {name: (lambda f=f: jax.block_until_ready(f())) for name, f in rows.items()}
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(arguments.repeats):
        for name, call in calls.items():
            per_step = STEPS if name in (JOINT, JOINT_FLOOR) else 1
            times[name] += [time / per_step for time in seconds(call, 1)]
    measured = {name: statistics.median(each) for name, each in times.items()}
    floors = {name: JOINT_FLOOR if name in (JOINT, JOINT_FLOOR) else FLOOR for name in measured}
    ratios = {name: statistics.median(np.divide(times[name], times[floors[name]])) for name in measured}
    lines = [
        f"The table shows medians of {arguments.repeats} runs on IMDB with {corpus.num_examples:,} reviews, "
        f"V = {corpus.vocab_size:,}, d = {DIM:,}, float32, {os.cpu_count()} CPU cores "
        f"and jax {jax.__version__}.",
        "",
        "| operation | median | × lower bound |",
        "|---|---|---|",
        *(f"| {name} | {1e3 * measured[name]:,.1f} ms | {ratios[name]:,.2f} |" for name in measured),
        "",
        f"Loading both splits takes {cold:.1f} s from tensorflow-datasets and {cached:.1f} s from the cache.",
    ]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        result = {
            "seconds": measured,
            "times_floor": ratios,
            "load_s": cold,
            "cached_load_s": cached,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__},
        }
        text_form = json.dumps(result, indent=2, ensure_ascii=False)
        (arguments.out / "imdb_gradient.json").write_text(text_form + "\n")
        (arguments.out / "imdb_gradient.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
