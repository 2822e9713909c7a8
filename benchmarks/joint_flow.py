"""Compare the joint flow of p and v with an independent ODE solver, and report which seeds agree.

    python benchmarks/joint_flow.py --out results/benchmarks [--seeds 64]

The problems have V = 16 with 8 relevant tokens, n = 40, T = 6 and d = 32, after one step of size 60 on E.
`joint_flow` runs to ‖p‖ = 1000, and the ODE solver (`joint_ode.py`, in NumPy and SciPy) to log ‖v‖ = 19.6.
Above log ‖v‖ ≈ 17.8, `joint_flow` computes v as a function of p. The rows of its path are compared with the
ODE solution at the same log ‖v‖.
"""

import argparse
import json
from collections import Counter
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from joint_ode import follow

import jaxattn as ja
from jaxattn.models.reference import padded_sequences

SIZES = {"vocab_size": 16, "relevant": 8, "length": 6, "sequences": 40}
UNTIL, AGREES = 19.6, 1e-4
DISTANCE = "largest ‖p - p_ODE‖/‖p‖"
# Number of seeds per call, the same in all calls so that one compiled program serves all of them.
CHUNK = 8


DATA = {
    "multi_relevant, 2 relevant tokens": partial(ja.data.multi_relevant, relevant_per_sequence=2),
    "multi_relevant, 3 relevant tokens": partial(ja.data.multi_relevant, relevant_per_sequence=3),
    "assumption1": ja.data.assumption1,
}


def problems(generate, seeds):
    """Sample corpora and initial parameters, and take one step on E."""

    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = generate(data_key, **SIZES)
        params = ja.models.one_layer.init(
            model_key, vocab_size=SIZES["vocab_size"], dim=32, dtype=jnp.float64
        )
        return ja.dynamics.one_step(params, corpus, step_size=60.0), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), seeds))


def apart(params, corpus, path, until=UNTIL, tolerance=1e-8):
    """Return log ‖v‖ and ‖p - p_ODE‖/‖p_ODE‖ at points of the path of one seed, as a (rows, 2) array."""
    log_norm = np.asarray(path.log_v_norm)
    # Use only rows at which ‖v‖ is smaller than at all later rows, and stop slightly below its maximum, which
    # the path may approach without reaching.
    later = np.append(np.minimum.accumulate(log_norm[::-1])[::-1][1:], np.inf)
    until = min(until, log_norm.max() - 0.01)
    rows = np.flatnonzero((log_norm < later) & (log_norm > log_norm[0]) & (log_norm < until))
    found = follow(
        *(np.asarray(x) for x in (params.E, params.p, params.v)),
        *map(np.asarray, padded_sequences(corpus)),
        np.asarray(corpus.targets),
        until,
        tolerance,
    )
    rows = rows[log_norm[rows] < found.until]
    expected = np.array([found.at(x)[0] for x in log_norm[rows]]).reshape(len(rows), -1)
    off = np.linalg.norm(np.asarray(path.p)[rows] - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return np.stack([log_norm[rows], off], axis=1)


def tied_pairs(params, corpus, selection):
    """Count the tied tokens on the margin of v_mm, or return None if v_mm does not exist.

    A support sequence of v_mm with k distinct tokens on the margin, y E_s·v_mm = 1, counts k - 1 times.
    """
    found = ja.theory.relaxed_max_margin(ja.theory.Scores(params.E, corpus), selection)
    if not found.head.feasible:
        return None
    values = np.asarray(params.E) @ found.v
    ids, mask = map(np.asarray, padded_sequences(corpus))
    on_margin = np.abs(np.asarray(corpus.targets)[:, None] * values[ids] - 1) <= 1e-8
    return sum(len(set(ids[X][(on_margin & mask)[X]])) - 1 for X in np.flatnonzero(found.support))


def measure(name, generate, seeds):
    """Integrate all seeds with `joint_flow` and the ODE solver, and return a row with the results."""
    params, corpora = problems(generate, seeds)
    found = []
    for first in range(0, seeds, CHUNK):
        some = jax.tree.map(lambda x, first=first: x[first : first + CHUNK], (params, corpora))
        paths = jax.device_get(ja.dynamics.joint_flow(*some, until_norm=1e3))
        for place in range(len(paths.status)):
            own = jax.tree.map(lambda x, place=place: np.asarray(x[place]), (*some, paths))
            found.append({"seed": first + place, **compare(*own)})
            print(json.dumps(found[-1], ensure_ascii=False), flush=True)
    agree = [one for one in found if one[DISTANCE] <= AGREES]
    row = {
        "data": name,
        "seeds": seeds,
        "ended by": dict(Counter(one["end"] for one in found)),
        "share that agrees to 1e-4 as far as it goes": len(agree) / seeds,
        "share that ends by norm and agrees": sum(one["end"] == "norm" for one in agree) / seeds,
        "share unsettled": sum(one["end"] == "unsettled" for one in found) / seeds,
        "each": found,
    }
    print(json.dumps({key: x for key, x in row.items() if key != "each"}, ensure_ascii=False), flush=True)
    return row


def compare(params, corpus, path):
    """Compare the path of one seed with the ODE solution, and return the outcome."""
    rows = apart(params, corpus, path)
    return {
        "end": path.stop,
        "mismatch": f"{path.mismatch:.2g}",
        "pairs tied on the margin of v_mm": tied_pairs(params, corpus, path.selection),
        "log ‖v‖ compared to": round(float(rows[-1, 0]), 2),
        DISTANCE: float(f"{rows[:, 1].max():.2g}"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--out", type=Path, help="folder for joint_flow.json")
    given = parser.parse_args()
    with jax.enable_x64(True):
        rows = []
        for name, generate in DATA.items():
            rows.append(measure(name, generate, given.seeds))
            if given.out:
                given.out.mkdir(parents=True, exist_ok=True)
                text = json.dumps({"jax": jax.__version__, "rows": rows}, indent=1, ensure_ascii=False)
                (given.out / "joint_flow.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
