"""Report how exact flows of p end on data with tied tokens, and whether their limits are certified.

    python benchmarks/ties.py --out results/benchmarks                                     # synthetic corpora
    python benchmarks/ties.py --only reviews --data-dir DIRECTORY_OF_TFDS --out results/benchmarks    # IMDB

The synthetic corpora have V = 50, 20 relevant tokens, n = 200 and T = 8. Models have d = 2048, and take one
step of size 200 on E. Corpora and parameters are sampled from the seeds as in a study. The reviews are the
first 500 IMDB reviews, with the words that occur at least 20 times in them and one step of size 5,000 on E.
For reviews, only the parameters depend on the seed. All flows run in coordinates of the span, up to
‖p‖ = 1e6.
"""

import argparse
import json
import os
import time
from collections import Counter
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from imdb import folder_of_imdb

import jaxattn as ja
from jaxattn.core.loops import map_on_cores
from jaxattn.lab.engine.programs import seed_keys

SIZES = {"vocab_size": 50, "length": 8, "sequences": 200}
MADE = {
    "independent": ja.data.Independent(relevant=20, **SIZES),
    "topics, 2 topic words": ja.data.Topics(relevant=20, topic_words=2, **SIZES),
    "several relevant tokens": ja.data.MultiRelevant(relevant=20, relevant_per_sequence=2, **SIZES),
    "assumption1": ja.data.Assumption1(relevant=20, **SIZES),
}
MODEL = ja.models.OneLayer(dim=2048).in_span()


def made(data, seeds):
    """For many seeds, return the parameters after one step on E and the corpora, sampled as in a study."""
    data_keys, keys, _ = seed_keys(list(range(seeds)))

    def draw(data_key, key):
        corpus = data.draw(data_key).train
        params = MODEL.init(key, corpus, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=200.0), corpus

    return jax.jit(jax.vmap(draw))(data_keys, keys)


def reviews(data_dir, count, min_count, step_size, seeds):
    """Return the parameters for many seeds after one step on E, and the corpus of reviews that they share."""
    source = ja.texts.Tfds(
        dataset="imdb_reviews", data_dir=data_dir, train=f"train[:{count}]", test="", min_count=min_count
    )
    corpus = source.load(lambda *_: None).splits.train

    def draw(key):
        params = MODEL.init(key, corpus, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=step_size)

    return jax.jit(jax.vmap(draw))(seed_keys(list(range(seeds)))[1]), corpus


def measure(name, params, corpus, shared, max_steps=10_000):
    """Compute the flow for each seed, certify the limit, and return a summary."""
    begin = time.perf_counter()
    path = jax.block_until_ready(
        ja.dynamics.exact_flow(
            ja.theory.scores.one_layer(params, corpus),
            params.p,
            until_norm=1e6,
            points=16,
            max_steps=max_steps,
        )
    )
    took = time.perf_counter() - begin
    params, corpora, path = jax.device_get((params, corpus, path))

    def certify(seed):
        own, chosen = jax.tree.map(lambda x: x[seed], (params, path.selection))
        corpus = corpora if shared else jax.tree.map(lambda x: x[seed], corpora)
        scores = ja.theory.scores.one_layer(own, corpus)
        found = ja.theory.certify_limit(scores, path.p[seed, -1], chosen)
        away = float(ja.theory.one_minus_cosine(path.p[seed, -1], found.direction.p))
        return {"holds": found.holds, "1 - cos": away, "ties": len(found.direction.ties)}

    arrived = [seed for seed, end in enumerate(path.stop) if end == "norm"]
    found = map_on_cores(certify, arrived)
    row = {
        "data": name,
        "seeds": len(path.status),
        "ended by": dict(Counter(path.stop)),
        "‖p‖ of those that ended elsewhere": [
            float(f"{norm:.4g}")
            for norm, end in zip(path.norm[:, -1], path.stop, strict=True)
            if end != "norm"
        ],
        "certificates that hold": sum(one["holds"] for one in found),
        "worst 1 - cos": max((one["1 - cos"] for one in found), default=None),
        "with ties": sum(one["ties"] > 0 for one in found),
        "most tied tokens beside their leader": max((one["ties"] for one in found), default=0),
        "median steps": float(np.median(path.accepted)),
        "flow, compilation included, s": round(took, 1),
    }
    print(json.dumps(row, ensure_ascii=False), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=["made", "reviews"], default="made")
    parser.add_argument(
        "--seeds", type=int, help="number of seeds; defaults to 64 for made corpora, 3 for reviews"
    )
    parser.add_argument("--reviews", type=int, default=500, help="number of reviews")
    parser.add_argument("--min-count", type=int, default=20, help="minimum number of occurrences of a word")
    parser.add_argument("--step-size", type=float, default=5000.0, help="size of the step on E, for reviews")
    parser.add_argument("--max-steps", type=int, default=10_000, help="maximum number of steps of a path")
    parser.add_argument("--data-dir", type=folder_of_imdb, help="directory of tensorflow-datasets")
    parser.add_argument("--out", type=Path, help="folder for ties_made.json or ties_reviews_500.json")
    given = parser.parse_args()
    with jax.enable_x64(True):
        if given.only == "made":
            seeds = given.seeds or 64
            rows = [measure(name, *made(data, seeds), False) for name, data in MADE.items()]
        else:
            params, corpus = reviews(
                given.data_dir, given.reviews, given.min_count, given.step_size, given.seeds or 3
            )
            alone = partial(jax.tree.map, lambda x: x[None])
            # Run one seed at a time, so that results are printed immediately.
            rows = [
                measure(
                    f"{given.reviews} reviews, V = {corpus.vocab_size}, seed {seed}",
                    alone(jax.tree.map(lambda x, seed=seed: x[seed], params)),
                    corpus,
                    True,
                    given.max_steps,
                )
                for seed in range(given.seeds or 3)
            ]
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        found = {"cores": os.cpu_count(), "jax": jax.__version__, "rows": rows}
        text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
        what = "made" if given.only == "made" else f"reviews_{given.reviews}"
        (given.out / f"ties_{what}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
