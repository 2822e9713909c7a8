"""Compute the joint limit of E, p and v near zero loss, and time the flow.

    python benchmarks/full_flow.py [--until -1e4] > results/benchmarks/full_flow.md

Let s(X) be the token of sequence X with the largest final score, and r_eff the number of distinct tokens
s(X). The law under test is y E_s·v = ‖v‖²/√r_eff for these tokens, and E_s·v = 0 for all others. The first
case has the corpus sizes of the base setting in the claims. In the other cases, irrelevant tokens have the
largest final score, or there are multiple relevant tokens per sequence.
"""

import argparse
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import jaxattn as ja
from jaxattn.lab.pages.layout import markdown
from jaxattn.models.reference import padded_sequences

BASE = {"vocab_size": 50, "relevant": 20, "length": 8, "sequences": 200}
SMALL = {"vocab_size": 12, "length": 4, "sequences": 40}
# Each case: name, generator, sizes, d, scaling factor for E, p and v, and number of seeds.
CASES = {
    "V = 50, R = 20": (ja.data.assumption1, BASE, 256, 1.0, 8),
    "V = 12, R = 8": (ja.data.assumption1, SMALL | {"relevant": 8}, 24, 1.0, 5),
    "V = 12, R = 10, start × 0.1": (ja.data.assumption1, SMALL | {"relevant": 10}, 24, 0.1, 5),
    "V = 12, R = 8, 2 relevant a sequence": (
        partial(ja.data.multi_relevant, relevant_per_sequence=2),
        SMALL | {"relevant": 8},
        24,
        1.0,
        5,
    ),
    "V = 12, R = 8, 3 relevant a sequence": (
        partial(ja.data.multi_relevant, relevant_per_sequence=3),
        SMALL | {"relevant": 8},
        24,
        1.0,
        5,
    ),
}


def problems(generate, sizes, dim, scale, seeds):
    """Sample corpora and initial parameters for many seeds."""

    def draw(key):
        data_key, model_key = jax.random.split(key)
        params = ja.models.one_layer.init(
            model_key, vocab_size=sizes["vocab_size"], dim=dim, dtype=jnp.float64
        )
        return jax.tree.map(lambda x: scale * x, params), generate(data_key, **sizes)

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), seeds))


def end(E, p, v, corpus, relevant):
    """Return properties of the final top tokens of one seed, and ratios of E·v to the values in the law."""
    ids, mask = padded_sequences(corpus)
    labels = np.asarray(corpus.targets)
    on_top = ids[np.arange(len(ids)), np.where(mask, (E @ p)[ids], -np.inf).argmax(axis=1)]
    chosen, sign = np.unique(on_top), np.zeros(len(E))
    consistent = all(np.ptp(labels[on_top == s]) == 0 for s in chosen)
    sign[on_top] = labels
    ratio = (E @ v) / (v @ v) * np.sqrt(len(chosen))
    return {
        "r_eff": len(chosen),
        "relevant of them": int((chosen < relevant).sum()),
        "irrelevant": int((chosen >= relevant).sum()),
        "one label each": consistent,
        "y E_s·v √r_eff/‖v‖², smallest": (ratio * sign)[chosen].min(),
        "largest": (ratio * sign)[chosen].max(),
        "elsewhere, largest size": np.abs(np.where(sign == 0, ratio, 0)).max(),
    }


def describe(name, path, corpora, relevant):
    """Return a table of the final state, with one row per seed."""
    rows = []
    for seed, stop in enumerate(path.stop):
        E, p, v = (np.asarray(getattr(path, x)[seed, -1]) for x in ("E", "p", "v"))
        found = end(E, p, v, jax.tree.map(lambda x, seed=seed: x[seed], corpora), relevant)
        log_loss = np.asarray(path.log_loss)[seed, -1]
        rows.append({"case": name, "seed": seed, "end": stop, "log L": log_loss} | found)
    return pd.DataFrame(rows)


def over_losses(path, relevant):
    """Return a table with a row per loss: medians over seeds, and the maximum of `drift` over seeds."""
    E, p, v = (np.asarray(x) for x in (path.E, path.p, path.v))
    sizes = [np.linalg.norm(x, axis=-1) for x in (E, p, v)]
    along = np.einsum("bksr,bkr->bks", E, v) / sizes[2][..., None]
    whole = np.linalg.norm(sizes[0], axis=-1)
    columns = {
        "log L": path.log_loss,
        "‖E‖": whole,
        "‖p‖": sizes[1],
        "‖v‖": sizes[2],
        "cos(p, v)": (p * v).sum(-1) / sizes[1] / sizes[2],
        "irrelevant tokens, longest": sizes[0][..., relevant:].max(-1),
        "rank-one share of ‖E‖²": (along**2).sum(-1) / whole**2,
    }
    medians = {name: np.median(np.asarray(x), axis=0) for name, x in columns.items()}
    return pd.DataFrame(medians | {"drift, worst": np.asarray(path.drift).max(axis=0)})


def shown(table):
    return markdown(table.map(lambda x: f"{x:.4g}" if isinstance(x, float) else str(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--until", type=float, default=-1e4)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("# `python benchmarks/full_flow.py`\n")
    ends, losses, cost = [], None, []
    for name, (generate, sizes, dim, scale, seeds) in CASES.items():
        params, corpora = problems(generate, sizes, dim, scale, seeds)
        begin = time.process_time()
        path = jax.block_until_ready(
            ja.dynamics.full_flow(params, corpora, until_log_loss=given.until, points=12)
        )
        cost.append(f"{name}: {(time.process_time() - begin) / seeds:.2g}")
        print(cost[-1], file=sys.stderr, flush=True)
        ends.append(describe(name, path, corpora, sizes["relevant"]))
        if losses is None:
            losses = over_losses(path, sizes["relevant"])
    print(f"Seconds of CPU a seed to log L = {given.until:g}, compilation included: {'; '.join(cost)}.\n")
    print("Where every seed ends:\n")
    print(shown(pd.concat(ends)))
    print(f"\nThe way of the first case, {next(iter(CASES))}:\n")
    print(shown(losses))


if __name__ == "__main__":
    main()
