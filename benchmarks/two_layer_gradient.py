"""One full-batch gradient of the two-layer model: in token space, against the textbook's (n, T, T) scores.

    python benchmarks/two_layer_gradient.py --out results/benchmarks   # reviews of Zipf draws
    python benchmarks/two_layer_gradient.py --out results/benchmarks --data-dir DIRECTORY_OF_TFDS   # IMDB

The textbook gathers E[x] and forms scores (n, T, T), jitted, differentiated by JAX. It does not fit into
memory at once, and is helped: sequences are sorted by length, cut into chunks of about as many positions
each, and a chunk is padded to its longest sequence only. Chunks evenly spaced over all lengths are timed
and extrapolated to the corpus, for several sizes of chunk; the fastest size counts. All rows are measured
in one process, in turn, so that their ratios hold where times drift.
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

import jaxattn as ja
from jaxattn.attention.gram import gram_matrix

POSITIONS = (2048, 8192, 32768)
NAMES = ("E", "p", "v")


def zipf_reviews(sequences, vocab_size):
    """Draw sequences as long as reviews (median 170, some ten times that) of tokens by Zipf's law."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(np.log(170), 0.65, sequences)), 10, 2000).astype(int)
    weight = 1 / np.arange(3, vocab_size + 3)
    tokens = rng.choice(vocab_size, lengths.sum(), p=weight / weight.sum())
    return ja.data.from_flat(tokens, lengths, rng.choice([-1, 1], sequences), vocab_size=vocab_size)


def seconds(function):
    """Time one call, waiting for its result."""
    begin = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - begin


def loss(logits, labels, sequences):
    return jax.nn.softplus(-labels * logits).sum() / sequences


class Textbook:
    """Chunks of sequences and the jitted gradient of one chunk, added to the gradient so far."""

    def __init__(self, corpus, params, positions, samples):
        self.corpus, self.params = corpus, params
        ids, mask = ja.models.reference.padded_sequences(corpus)
        lengths, order = mask.sum(axis=1), np.argsort(mask.sum(axis=1), kind="stable")
        chunks, begin = [], 0
        while begin < len(order):
            size = max(1, positions // lengths[order[begin]])
            while size > 1 and size * lengths[order[min(begin + size, len(order)) - 1]] > positions:
                size -= 1
            chunks.append(order[begin : begin + size])
            begin += size
        self.number = len(chunks)
        self.sampled = [chunks[i] for i in np.linspace(0, len(chunks) - 1, 2 * samples + 1).astype(int)[1::2]]
        labels = np.asarray(corpus.labels)
        self.data = [
            [jnp.asarray(x) for x in (ids[c, : lengths[c].max()], mask[c, : lengths[c].max()], labels[c])]
            for c in self.sampled
        ]
        self.step = jax.jit(self._step, donate_argnums=0)
        self.epoch()

    def _step(self, total, params, ids, mask, labels):
        gradient = jax.grad(
            lambda x: loss(
                ja.models.reference.two_layer_logits(x, ids, mask), labels, self.corpus.num_sequences
            )
        )(params)
        return jax.tree.map(jnp.add, total, gradient)

    def epoch(self):
        """Seconds for the whole corpus, from the sampled chunks; their summed gradient is kept."""
        total = jax.tree.map(jnp.zeros_like, self.params)
        times = []
        for data in self.data:
            begin = time.perf_counter()
            total = jax.block_until_ready(self.step(total, self.params, *data))
            times.append(time.perf_counter() - begin)
        self.gradient = total
        return statistics.fmean(times) * self.number


def sub_corpus(corpus, rows):
    ids, mask = ja.models.reference.padded_sequences(corpus)
    return ja.data.from_flat(
        ids[rows][mask[rows]],
        mask[rows].sum(axis=1),
        np.asarray(corpus.labels)[rows],
        vocab_size=corpus.vocab_size,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="directory of tensorflow-datasets; without it Zipf draws are used")
    parser.add_argument("--sequences", type=int, default=25_000, help="of the Zipf draws")
    parser.add_argument("--vocab-size", type=int, default=7_800, help="of the Zipf draws")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, default=12, help="chunks of the textbook to time")
    parser.add_argument("--out", type=Path, help="folder for two_layer_gradient_*.json")
    arguments = parser.parse_args()

    if arguments.data_dir:
        name = "imdb"
        source = ja.data.Tfds(dataset="imdb_reviews", data_dir=arguments.data_dir, min_count=45)
        corpus = source.load().splits.train
    else:
        name, corpus = "zipf", zipf_reviews(arguments.sequences, arguments.vocab_size)
    n = corpus.num_sequences
    params = ja.models.two_layer.init(jax.random.key(0), vocab_size=corpus.vocab_size, dim=arguments.dim)
    gradient = jax.jit(jax.grad(lambda x, c: loss(ja.models.two_layer.logits(x, c), c.labels, n)))
    gram = gram_matrix(params.E)

    @jax.jit
    def both_ways(E, d_gram):
        result, pull = jax.vjp(gram_matrix, E)
        return result, pull(d_gram)

    scores, values = ja.models.two_layer.scores_and_values(params)
    forward = jax.jit(lambda c, *x: ja.attention.two_layer_attention(c, *x, symmetric=True, residual=False))
    rows = {
        "∂L/∂E, ∂L/∂p and ∂L/∂v in token space": lambda: gradient(params, corpus),
        "E Eᵀ and its derivative, part of it": lambda: both_ways(params.E, gram),
        "logits from G, part of it": lambda: forward(corpus, gram, scores, values),
    }
    times = {row: [] for row in rows}
    for call in rows.values():
        seconds(call)
    textbooks = {size: Textbook(corpus, params, size, arguments.samples) for size in POSITIONS}
    times |= {f"textbook, chunks of {size} positions": [] for size in POSITIONS}
    for _ in range(arguments.repeats):
        for row, call in rows.items():
            times[row].append(seconds(call))
        for size, textbook in textbooks.items():
            times[f"textbook, chunks of {size} positions"].append(textbook.epoch())
    measured = {row: statistics.median(each) for row, each in times.items()}
    ours = next(iter(rows))
    best = min((row for row in measured if row.startswith("textbook")), key=measured.get)
    ratio = statistics.median(np.divide(times[best], times[ours]))

    errors = {}
    textbook = textbooks[POSITIONS[0]]
    mine = gradient(params, sub_corpus(corpus, np.concatenate(textbook.sampled)))
    for each in NAMES:
        expected = getattr(textbook.gradient, each)
        difference = jnp.abs(getattr(mine, each) - expected).max() / jnp.abs(expected).max()
        errors[each] = float(difference)

    distinct = np.bincount(np.asarray(corpus.bags.owner), (np.asarray(corpus.bags.count) > 0).sum(1))
    lengths = np.asarray(corpus.lengths, np.float64)
    result = {
        "data": name,
        "sequences": n,
        "vocab_size": corpus.vocab_size,
        "dim": arguments.dim,
        "mean_length": lengths.mean(),
        "longest": int(lengths.max()),
        "mean_distinct": distinct.mean(),
        "most_distinct": int(distinct.max()),
        "pairs_of_positions": (lengths**2).sum(),
        "pairs_of_distinct_tokens": (distinct**2).sum(),
        "seconds": measured,
        "all_seconds": times,
        "textbook_over_token_space": ratio,
        "relative_error_on_the_sampled_chunks": errors,
        "sampled_chunks": arguments.samples,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load_average": os.getloadavg(),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__},
    }
    print(json.dumps(result, indent=2, ensure_ascii=False))
    print(f"The textbook takes {ratio:,.1f} times as long.")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        path = arguments.out / f"two_layer_gradient_{name}.json"
        path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
