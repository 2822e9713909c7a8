"""Compare the time of a minibatch step of two-layer models in token space and in textbook code.

    python benchmarks/two_layer_gradient.py --out results/benchmarks   # synthetic reviews
    python benchmarks/two_layer_gradient.py --out results/benchmarks --data-dir DIRECTORY_OF_TFDS   # IMDB

A step computes all gradients and applies Adam. The textbook code gathers E[x] and computes scores as an
(n, T, T) array, jitted and differentiated by JAX. It pads the minibatch to its longest sequence and processes
it in parts that fit in memory. The row "textbook, sorted" is an improved version, which only computes the
gradients. It sorts the sequences by length, splits them into chunks with about the same number of positions,
and pads each chunk to its longest sequence. All rows are measured in turn in one process, and the minimum
time of each row is reported.
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
import optax
from imdb import folder_of_imdb

import jaxattn as ja
from jaxattn.models.reference import padded_sequences, two_layer_outputs

MODELS = {"two_layer": ja.models.two_layer, "two_layer_weights": ja.models.two_layer_weights}
NAMES = {"two_layer": ("E", "p", "v"), "two_layer_weights": ("E", "p", "v", "W1", "W2")}
# Number of positions processed at once.
POSITIONS = 8192
# Number of sequences in a minibatch that the textbook implementation processes at once.
PART = 32


def zipf_reviews(sequences, vocab_size):
    """Sample a corpus with review-like lengths (median 170, up to 2,000) and Zipf-distributed tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(np.log(170), 0.65, sequences)), 10, 2000).astype(int)
    weight = 1 / np.arange(3, vocab_size + 3)
    tokens = rng.choice(vocab_size, lengths.sum(), p=weight / weight.sum())
    return ja.data.from_flat(tokens, lengths, rng.choice([-1, 1], sequences), vocab_size=vocab_size)


def seconds(function):
    """Call a function and return the time in seconds until its result is ready."""
    begin = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - begin


def in_turn(calls, repeats):
    """Run all calls in turn, `repeats` times each, and return lists of times by name."""
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return times


def fastest(times):
    """Return the minimum time of each call by name. Other load on the machine can only add time."""
    return {name: min(each) for name, each in times.items()}


def loss(logits, labels, sequences):
    return jax.nn.softplus(-labels * logits).sum() / sequences


def textbook_gradient(params, ids, mask, labels, sequences):
    return jax.grad(lambda x: loss(two_layer_outputs(x, ids, mask), labels, sequences))(params)


def relative_errors(mine, expected, names):
    """Return the largest error of each array by name, relative to the largest entry of the expected array."""
    pairs = {name: (getattr(mine, name), getattr(expected, name)) for name in names}
    return {name: float(jnp.abs(x - y).max() / jnp.abs(y).max()) for name, (x, y) in pairs.items()}


class Chunks:
    """Textbook code on chunks of sequences with similar lengths."""

    def __init__(self, corpus, params, positions):
        self.params = params
        ids, mask = padded_sequences(corpus)
        lengths, labels = mask.sum(axis=1), np.asarray(corpus.targets)
        order = np.argsort(lengths, kind="stable")
        chunks, begin = [], 0
        while begin < len(order):
            size = max(1, positions // lengths[order[begin]])
            while size > 1 and size * lengths[order[min(begin + size, len(order)) - 1]] > positions:
                size -= 1
            chunks.append(order[begin : begin + size])
            begin += size
        self.data = [
            [jnp.asarray(x) for x in (ids[c, : lengths[c].max()], mask[c, : lengths[c].max()], labels[c])]
            for c in chunks
        ]

        def add(total, params, *data):
            gradient = textbook_gradient(params, *data, len(labels))
            return jax.tree.map(jnp.add, total, gradient)

        self.add = jax.jit(add, donate_argnums=0)
        self.epoch()

    def epoch(self):
        """Return the sum of the gradients of all chunks."""
        total = jax.tree.map(jnp.zeros_like, self.params)
        for data in self.data:
            total = self.add(total, self.params, *data)
        return jax.block_until_ready(total)


class Step:
    """Jitted Adam step whose gradient is computed by `gradient(params, *data)`."""

    def __init__(self, params, gradient, *data):
        adam = optax.adam(1e-4)

        def step(state, *data):
            params, moments = state
            updates, moments = adam.update(gradient(params, *data), moments, params)
            return optax.apply_updates(params, updates), moments

        self.step, self.data = jax.jit(step, donate_argnums=0), data
        params = jax.tree.map(jnp.copy, params)
        self.state = params, adam.init(params)
        self()

    def __call__(self):
        self.state = jax.block_until_ready(self.step(self.state, *self.data))


def minibatch(corpus, kind, params, size, repeats):
    """Time steps on a random minibatch of the corpus, and return the times and errors.

    The step in token space also extracts the minibatch from the corpus.
    """
    model, names = MODELS[kind], NAMES[kind]
    own = np.sort(np.random.default_rng(0).choice(corpus.num_examples, size, replace=False))
    batch = sub_corpus(corpus, own)
    padded = [jnp.asarray(x) for x in (*padded_sequences(batch), batch.targets)]
    padded = [x.reshape(-1, PART, *x.shape[1:]) for x in padded]

    def ours(params, corpus, own):
        on = corpus.take(own)
        return jax.grad(lambda x: loss(model.outputs(x, on), on.targets, size))(params)

    def textbook(params, *parts):
        def add(total, part):
            return jax.tree.map(jnp.add, total, textbook_gradient(params, *part, size)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)[0]

    expected = jax.jit(textbook)(params, *padded)
    errors = relative_errors(jax.jit(ours)(params, corpus, jnp.asarray(own)), expected, names)
    del expected
    sort = Chunks(batch, params, POSITIONS)
    calls = {
        "in token space": Step(params, ours, corpus, jnp.asarray(own)),
        "textbook": Step(params, textbook, *padded),
        "textbook, sorted": sort.epoch,
    }
    times = in_turn(calls, repeats)
    least = fastest(times)
    return {
        "sequences": size,
        "longest": padded[0].shape[-1],
        "seconds": least,
        "all_seconds": times,
        "textbook_over_token_space": least["textbook"] / least["in token space"],
        "sorted_textbook_over_token_space": least["textbook, sorted"] / least["in token space"],
        "relative_error": errors,
    }


def sub_corpus(corpus, rows):
    ids, mask = padded_sequences(corpus)
    return ja.data.from_flat(
        ids[rows][mask[rows]],
        mask[rows].sum(axis=1),
        np.asarray(corpus.targets)[rows],
        vocab_size=corpus.vocab_size,
    )


def about(corpus):
    distinct = np.bincount(np.asarray(corpus.bags.owner), (np.asarray(corpus.bags.count) > 0).sum(1))
    lengths = np.asarray(corpus.lengths, np.float64)
    return {
        "sequences": corpus.num_examples,
        "vocab_size": corpus.vocab_size,
        "mean_length": lengths.mean(),
        "longest": int(lengths.max()),
        "mean_distinct": distinct.mean(),
        "most_distinct": int(distinct.max()),
        "pairs_of_positions": (lengths**2).sum(),
        "pairs_of_distinct_tokens": (distinct**2).sum(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data-dir",
        type=folder_of_imdb,
        help="directory of tensorflow-datasets; by default reviews are sampled by Zipf's law",
    )
    parser.add_argument("--sequences", type=int, default=25_000, help="number of sampled sequences")
    parser.add_argument("--vocab-size", type=int, default=7_800, help="vocabulary size of sampled sequences")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=256, help=f"size of a minibatch, a multiple of {PART}")
    parser.add_argument("--model", choices=MODELS, default="two_layer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for two_layer_gradient_*.json")
    options = parser.parse_args()

    if options.data_dir:
        data = "imdb"
        source = ja.texts.Tfds(dataset="imdb_reviews", data_dir=options.data_dir, min_count=45)
        corpus = source.load().splits.train
    else:
        data, corpus = "zipf", zipf_reviews(options.sequences, options.vocab_size)
    kind = options.model
    params = MODELS[kind].init(jax.random.key(0), vocab_size=corpus.vocab_size, dim=options.dim)
    found = {"data": data, "model": kind, "dim": options.dim} | about(corpus)
    found["minibatch"] = minibatch(corpus, kind, params, options.batch, options.repeats)
    found |= {
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load_average": os.getloadavg(),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__},
    }
    print(json.dumps(found, indent=2, ensure_ascii=False))
    print(f"The textbook code takes {found['minibatch']['textbook_over_token_space']:,.1f} times as long.")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        name = "two_layer_gradient" if kind == "two_layer" else "two_layer_weights_gradient"
        path = options.out / f"{name}_{data}.json"
        path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
