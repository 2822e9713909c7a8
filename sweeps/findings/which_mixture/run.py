"""Which mixture: certified limits of p and v, held against flows that know nothing of them.

    python run.py runs [--seeds 64] [--ode 16] [--only CORPUS ...] --out FOLDER     # runs_CORPUS.csv
    python run.py tables --out FOLDER                                               # runs.csv, shares.md, figure

V = 16 with 8 relevant tokens, n = 40, T = 6, d = 32, one step of 60 on E. `joint_flow` goes until it ends as
unsettled, or to log ‖v‖ = 18 where it does not; there the limit is certified. From there the far flow goes to
log r = 1e4 (`far.py`); and from log ‖v‖ = 15 on the first seeds are followed by an independent ODE
(`benchmarks/joint_ode.py`) to 19.6 as well.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

import jaxattn as ja
from jaxattn.models.reference import padded_sequences
from jaxattn.results import judge
from jaxattn.theory import Scores, certify_joint_limit, relaxed_max_margin, selection_from_scores

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "benchmarks")]
from far import Far, follow  # noqa: E402
from joint_ode import follow as follow_ode  # noqa: E402

SIZES = {"vocab_size": 16, "relevant": 8, "length": 6, "sequences": 40}
DATA = {
    "multi_relevant 2": partial(ja.data.multi_relevant, relevant_per_sequence=2),
    "multi_relevant 3": partial(ja.data.multi_relevant, relevant_per_sequence=3),
    "independent": ja.data.independent,
    "topics": partial(ja.data.topics, topic_words=2),
    "assumption1": ja.data.assumption1,
}
# log ‖v‖ of the row that is certified, at most; of that where the ODE begins, and where it ends.
CERTIFIED, BEGIN, END = 18.5, 15.0, 19.6
FAR = 1e4
AGREES = 1e-5
CHUNK = 8


def problems(generate, seeds):
    """Draw corpora, and the parameters after one step."""

    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = generate(data_key, **SIZES)
        params = ja.models.one_layer.init(
            model_key, vocab_size=SIZES["vocab_size"], dim=32, dtype=jnp.float64
        )
        return ja.dynamics.one_step(params, corpus, step_size=60.0), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), seeds))


def runs(name, seeds, with_ode):
    """Measure all seeds of a corpus, a row each."""
    params, corpora = problems(DATA[name], seeds)
    rows = []
    for first in range(0, seeds, CHUNK):
        some = jax.tree.map(lambda x, first=first: x[first : first + CHUNK], (params, corpora))
        paths = jax.device_get(ja.dynamics.joint_flow(*some, until_norm=1e3))
        for place in range(len(paths.status)):
            own = jax.tree.map(lambda x, place=place: np.asarray(x[place]), (*some, paths))
            seed = first + place
            rows.append({"corpus": name, "seed": seed} | measure(*own, with_ode=seed < with_ode))
            print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def measure(params, corpus, path, with_ode):
    """Certify the limit of one seed, and follow it there."""
    rho = np.asarray(path.log_v_norm)
    last = np.flatnonzero(rho <= CERTIFIED)[-1]
    limit = certified(params, corpus, path, last)
    row = {"end": path.stop, "log_v": rho[last], "certified": limit.holds, "reason": limit.reason}
    row |= {"heavy": int(limit.heavy.sum()), "finite": int(limit.finite), "spare": float(limit.spare)}
    if limit.holds:
        relaxed = relax(params, corpus, path, last)
        row |= {"gap": float(max(limit.direction.gap, limit.head_gap)), "relaxed": apart(relaxed, limit.p)}
    if np.isnan(limit.v).any() or limit.finite:
        return row
    began = time.perf_counter()
    try:
        far, basis, log_r = start(params, corpus, path, last, limit)
        times, points, came = follow(far, basis @ path.p[last], log_r, FAR)
        direction = points[-1] / (2 * times[-1])
        row |= {"far": times[-1], "came": came, "far_s": time.perf_counter() - began}
        row |= {"fastest": float((np.linalg.norm(np.diff(points, axis=0), axis=1) / np.diff(times)).max())}
        if limit.holds:
            wanted = basis @ limit.p
            length = np.linalg.norm(direction) / np.linalg.norm(wanted)
            row |= {"apart": apart(direction, wanted), "length": float(length)}
        if with_ode:
            row |= against_ode(params, corpus, path)
    except FloatingPointError as error:
        row |= {"came": False, "far_reason": str(error)}
    return row


def apart(x, y):
    """Compute 1 - cos."""
    return float(ja.theory.one_minus_cosine(np.asarray(x), np.asarray(y)))


def certified(params, corpus, path, place):
    """Certify the limit from one row of a path."""
    v = np.asarray(path.v[place]) * np.exp(path.log_v_norm[place])
    return certify_joint_limit(Scores(params.E, corpus), path.p[place], v)


def relax(params, corpus, path, place):
    """Find p_relax of the tokens on top; NaN where there is none."""
    chosen = selection_from_scores(np.asarray(params.E) @ path.p[place], corpus, tie=0.0)
    return relaxed_max_margin(Scores(params.E, corpus), chosen, tied=0.5).p


def start(params, corpus, path, place, limit):
    """Set the far flow up: itself, the basis of its coordinates (m, d), and log r."""
    E, p = np.asarray(params.E), np.asarray(path.p[place])
    v = np.asarray(path.v[place]) * np.exp(path.log_v_norm[place])
    ids, mask = map(np.asarray, padded_sequences(corpus))
    n, labels = len(ids), np.asarray(corpus.targets)
    tokens, log_count = np.zeros(ids.shape, int), np.full(ids.shape, -np.inf)
    for X in range(n):
        own, count = np.unique(ids[X][mask[X]], return_counts=True)
        tokens[X, : len(own)], log_count[X, : len(own)] = own, np.log(count)
    there = np.isfinite(log_count)
    excess = np.where(there, labels[:, None] * (E @ limit.v)[tokens] - 1, 0)
    excess[np.abs(excess) < 1e-8] = 0
    top = tokens[np.arange(n), ((E @ p)[tokens] + log_count).argmax(axis=1)]
    multipliers = np.zeros(len(E))
    np.add.at(multipliers, top[limit.heavy], limit.weight[limit.heavy])
    (tight,) = np.nonzero(multipliers)
    point = np.full(ids.shape, -1)
    for k, s in enumerate(tight):
        point[(tokens == s) & (excess == 0) & there] = k
    basis = np.linalg.svd(E, full_matrices=False)[2]
    far = Far(E @ basis.T, tokens, log_count, excess, point, multipliers[tight])
    return far, basis, float(np.log(v @ limit.v / (limit.v @ limit.v)))


def against_ode(params, corpus, path):
    """Follow by the ODE and by the far flow from log ‖v‖ = 15: the largest ‖p - p_ODE‖/‖p‖ beyond 17."""
    rho = np.asarray(path.log_v_norm)
    place = int(np.argmin(np.abs(rho - BEGIN)))
    limit = certified(params, corpus, path, place)
    if np.isnan(limit.v).any():
        return {}
    v = np.asarray(path.v[place]) * np.exp(rho[place])
    ids, mask = map(np.asarray, padded_sequences(corpus))
    given = np.asarray(params.E), np.asarray(path.p[place]), v, ids, mask, np.asarray(corpus.targets)
    ode = follow_ode(*given, END, 1e-7, evaluations=20_000)
    far, basis, log_r = start(params, corpus, path, place, limit)
    longer = np.log(np.linalg.norm(limit.v))
    times, points, _ = follow(far, basis @ path.p[place], log_r, END - longer)
    spline, off = CubicSpline(times, points), [np.nan]
    for log_norm in np.arange(17.0, min(END, ode.until - 0.02), 0.2):
        expected = basis @ ode.at(log_norm)[0]
        off.append(np.linalg.norm(spline(log_norm - longer) - expected) / np.linalg.norm(expected))
    return {"ode_until": ode.until, "ode_off": float(np.nanmax(off)) if len(off) > 1 else np.nan}


def said(row):
    """Say in a word how a seed ends."""
    if not row["certified"]:
        return "unsettled"
    return "certified and followed" if row["came"] is True and row["apart"] <= AGREES else "certified only"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["runs"])
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--ode", type=int, default=16, help="seeds that the ODE follows too")
    parser.add_argument("--only", nargs="*", choices=list(DATA), default=list(DATA))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True), np.errstate(all="ignore"):
        for name in given.only:
            found = runs(name, given.seeds, given.ode)
            found.to_csv(given.out / f"runs_{name.replace(' ', '_')}.csv", index=False)


if __name__ == "__main__":
    main()
