"""Compare the time of a step on p in span coordinates with a step on the scores a = E p alone.

    python benchmarks/scores_alone.py

    p ← p - η Eᵀ g(E p),    a ← a - η K g(a),   K = E Eᵀ,   g = ∂L/∂a,

Times are medians of seven alternating runs in one process on one core. E has V + 2 columns.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import time

import jax
import numpy as np

import jaxattn as ja

STEPS, RATE = 3000, 0.1


def measure(vocab_size, sequences, length, relevant):
    """Return the times of a step on p, a step on the scores, and the gradient g alone, in µs per step."""
    corpus = ja.data.assumption1(
        jax.random.key(0), vocab_size=vocab_size, relevant=relevant, length=length, sequences=sequences
    )
    params = ja.models.one_layer.init(jax.random.key(1), vocab_size=vocab_size, dim=vocab_size + 2)
    E, values = params.E, params.E @ params.v
    K = E @ E.T

    def loss(a, corpus):
        return ja.losses.logistic(ja.attention.attend(corpus, a, values), corpus.targets).mean()

    g = jax.grad(loss)
    moves = {
        "p": (lambda p, corpus: g(E @ p, corpus) @ E, params.p),
        "a": (lambda a, corpus: K @ g(a, corpus), E @ params.p),
        "g alone": (g, E @ params.p),
    }
    loops = {
        name: jax.jit(
            lambda x, corpus, move=move: jax.lax.fori_loop(
                0, STEPS, lambda _, x: x - RATE * move(x, corpus), x
            )
        )
        for name, (move, _) in moves.items()
    }
    times = {name: [] for name in loops}
    for repeat in range(8):
        for name, loop in loops.items():
            begin = time.process_time()
            jax.block_until_ready(loop(moves[name][1], corpus))
            if repeat:  # the first run includes compilation
                times[name].append((time.process_time() - begin) / STEPS * 1e6)
    return {name: float(np.median(x)) for name, x in times.items()}


def main():
    for sizes in ((200, 512, 16, 40), (50, 200, 8, 20)):
        found = measure(*sizes)
        words = ", ".join(f"{name} {x:.1f} µs" for name, x in found.items())
        print("V = {}, n = {}, T = {}: ".format(*sizes[:3]) + f"{words}; a/p = {found['a'] / found['p']:.2f}")


if __name__ == "__main__":
    main()
