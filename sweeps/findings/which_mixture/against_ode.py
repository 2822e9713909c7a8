"""Compare the flow in log r (far.py) with an ODE that does not use v_mm, for log ‖v‖ from 15 to 19.6.

    python against_ode.py --out FOLDER [--seeds 6] [--relevant 2 3]    # ode.csv

Both start at the same row of `joint_flow`, near log ‖v‖ = 15. The ODE for p, v/‖v‖ and log ‖v‖
(`benchmarks/joint_ode.py`) is solved by SciPy's Radau method. It uses neither v_mm nor its multipliers. The
output has a row with ‖p - p_ODE‖/‖p_ODE‖ for each log ‖v‖.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

import jaxattn as ja
from jaxattn.models.reference import padded_sequences
from jaxattn.theory import Scores

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "benchmarks")]
from far import follow  # noqa: E402
from joint_limit import certify_joint_limit  # noqa: E402
from joint_ode import follow as follow_ode  # noqa: E402
from which_mixture import begin  # noqa: E402

SIZES = {"vocab_size": 16, "relevant": 8, "length": 6, "sequences": 40}
BEGIN, END, EVALUATIONS = 15.0, 19.6, 20_000


def problems(relevant, seeds):
    """Return parameters after one step on E, and corpora with `relevant` relevant tokens per sequence."""
    generate = partial(ja.data.multi_relevant, relevant_per_sequence=relevant, **SIZES)

    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = generate(data_key)
        params = ja.models.one_layer.init(model_key, vocab_size=16, dim=32, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=60.0), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), seeds))


def compare(params, corpus, path):
    """Integrate the flow of one seed with both methods, and return rows of log ‖v‖ and relative distance."""
    E, rho = np.asarray(params.E), np.asarray(path.log_v_norm)
    place = int(np.argmin(np.abs(rho - BEGIN)))
    p, v = np.asarray(path.p[place]), np.asarray(path.v[place]) * np.exp(rho[place])
    limit = certify_joint_limit(Scores(E, corpus), p, v)
    if np.isnan(limit.v).any():
        return np.zeros((0, 2))
    ids, mask = (np.asarray(x) for x in padded_sequences(corpus))
    ode = follow_ode(E, p, v, ids, mask, np.asarray(corpus.targets), END, 1e-7, evaluations=EVALUATIONS)
    far, basis, log_r = begin(E, p, v, corpus, limit)
    longer = np.log(np.linalg.norm(limit.v))
    times, points, _ = follow(far, basis @ p, log_r, END - longer)
    spline, rows = CubicSpline(times, points), []
    for log_norm in np.arange(np.ceil(2 * rho[place] + 0.1) / 2, min(END, ode.until - 0.02), 0.5):
        expected = basis @ ode.at(log_norm)[0]
        off = np.linalg.norm(spline(log_norm - longer) - expected) / np.linalg.norm(expected)
        rows.append([log_norm, off])
    return np.array(rows).reshape(-1, 2)


def main():
    """Compare both methods for all seeds, and write ode.csv."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--relevant", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with jax.enable_x64(True), np.errstate(all="ignore"):
        for relevant in given.relevant:
            params, corpora = problems(relevant, given.seeds)
            paths = jax.device_get(ja.dynamics.joint_flow(params, corpora, until_norm=1e3))
            for seed in range(given.seeds):
                own = jax.tree.map(lambda x, seed=seed: np.asarray(x[seed]), (params, corpora, paths))
                for log_norm, off in compare(*own):
                    rows.append({"relevant": relevant, "seed": seed, "log_v_norm": log_norm, "off": off})
                    print(rows[-1], flush=True)
                pd.DataFrame(rows).to_csv(given.out / "ode.csv", index=False)


if __name__ == "__main__":
    main()
