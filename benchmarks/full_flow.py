"""What E, p and v do together near zero loss, and what following them costs.

    python benchmarks/full_flow.py [--seeds 8] [--until -1e4]

Base setting of the scoreboard: Assumption 1, V = 50, n = 200, T = 8, 20 relevant tokens; d = 256.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import jaxattn as ja
from jaxattn.results.tables import markdown

RELEVANT = 20


def draw(key):
    data_key, model_key = jax.random.split(key)
    corpus = ja.data.assumption1(data_key, vocab_size=50, relevant=RELEVANT, length=8, sequences=200)
    return ja.models.one_layer.init(model_key, vocab_size=50, dim=256, dtype=jnp.float64), corpus


def measure(path):
    """Lay out a row for each loss: medians over seeds."""
    E, p, v = (np.asarray(x) for x in (path.E, path.p, path.v))
    sizes = [np.linalg.norm(x, axis=-1) for x in (E, p, v)]
    along = np.einsum("bksr,bkr->bks", E, v) / sizes[2][..., None]
    sign = np.where(np.arange(RELEVANT) % 2 == 1, 1, -1)
    ratio = along[..., :RELEVANT] * sign * np.sqrt(RELEVANT) / sizes[2][..., None]
    whole = np.linalg.norm(sizes[0], axis=-1)
    columns = {
        "log L": path.log_loss,
        "‖E‖": whole,
        "‖p‖": sizes[1],
        "‖v‖": sizes[2],
        "cos(p, v)": (p * v).sum(-1) / sizes[1] / sizes[2],
        "y E_s·v √r/‖v‖², smallest": ratio.min(-1),
        "largest": ratio.max(-1),
        "other tokens, longest": sizes[0][..., RELEVANT:].max(-1),
        "rank-one share of ‖E‖²": (along**2).sum(-1) / whole**2,
        "drift, worst": path.drift,
    }
    worst = {"drift, worst"}
    return pd.DataFrame(
        {name: (np.max if name in worst else np.median)(np.asarray(x), axis=0) for name, x in columns.items()}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--until", type=float, default=-1e4)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    params, corpora = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), given.seeds))
    for until in (np.log(1e-12), given.until):
        for _ in ("compile", "time"):
            begin = time.process_time()
            path = jax.block_until_ready(
                ja.dynamics.full_flow(params, corpora, until_log_loss=until, points=12)
            )
            spent = time.process_time() - begin
        ends = ", ".join(sorted(set(path.stop)))
        print(f"\nto log L = {until:g}: {spent / given.seeds:.2g} s of CPU a seed, ends: {ends}\n")
        print(markdown(measure(path).map("{:.4g}".format)))


if __name__ == "__main__":
    main()
