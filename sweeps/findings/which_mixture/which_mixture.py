"""Probe that certifies the limit of p and v and integrates the flow in log r, and tables of its results.

python which_mixture.py RUN [RUN ...] OUT reads folders of runs, and writes runs.csv, table.md and the figure.
"""

import sys
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pandas as pd
from far import Far, follow
from jax import Array
from joint_limit import JointLimit, certify_joint_limit
from matplotlib.figure import Figure

import jaxattn as ja
from jaxattn.lab.figures.style import DISTINCT, DPI, style
from jaxattn.lab.results import judge
from jaxattn.models.reference import padded_sequences
from jaxattn.theory import Scores, relaxed_max_margin, selection_from_scores

# Maximum log ‖v‖ of the path points that are certified, and log r at the end of the flow.
LONGEST, FAR = 18.5, 1e4
# The limit counts as confirmed if 1 - cos is at most this value at log r = FAR. Constraints that recede like
# log r leave an error of order (log log r / log r)².
AGREES = 1e-5


class Mixture(ja.PhaseProbe):
    """Certified limit of p and v after `joint_flow`, and the flow in log r towards this limit.

    Settings:
        follows: if True, integrate the flow in log r.
    """

    rotation_invariant: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = (
        *("certified", "certified_at", "heavy", "finite", "spare", "gap", "from_relaxed"),
        *("followed", "far_error", "far_length"),
    )
    labels: ClassVar[dict[str, str]] = {
        "certified": "the limit is certified",
        "certified_at": r"$\log\Vert v\Vert$ there",
        "heavy": "sequences of heavy weight",
        "finite": "dimensions of finite scores",
        "spare": "what is spare of strict conditions",
        "gap": "duality gap",
        "from_relaxed": r"$1 - \cos$ of $p_*$ and $p_\mathrm{relax}$",
        "followed": "the far flow comes to its end",
        "far_error": r"$1 - \cos$ of $p$ and $p_*$ at the end of the far flow",
        "far_length": r"$\Vert p\Vert/(2\log r\,\Vert p_*\Vert)$ there",
    }
    follows: bool = True

    def skip_reason(self, task: Any, phase: ja.Phase) -> str | None:
        """Return a reason to skip a phase that does not train exactly p and v, else None."""
        return None if set(phase.train) == {"p", "v"} else "requires a phase that trains p and v"

    def observe(self, phase: ja.Phase, state: Any) -> Array:
        """Return p and v for one seed as a (2, d) array."""
        return jax.numpy.stack([phase.parameter(state, name) for name in ("p", "v")])

    def conclude(self, history: np.ndarray, params: Any, model: Any, loaded: Any) -> Any:
        """Certify the limit for each seed, and integrate the flow in log r."""
        corpora = jax.device_get(loaded.splits.train)
        found = [
            measure(np.asarray(params.E[seed], np.float64), path, corpus, self.follows)
            for seed, path in enumerate(history)
            for corpus in [corpora if loaded.shared else jax.tree.map(lambda x, seed=seed: x[seed], corpora)]
        ]
        return {}, {name: np.array([x.get(name, np.nan) for x in found], float) for name in self.metrics}


def measure(E: np.ndarray, path: np.ndarray, corpus: ja.data.Corpus, follows: bool) -> dict[str, float]:
    """Certify the limit from the last point with log ‖v‖ ≤ 18.5, and integrate the flow in log r.

    `path` has shape (k, 2, d), and contains p and v at k points.
    """
    log_norm = np.log(np.linalg.norm(path[:, 1], axis=1))
    place = np.flatnonzero(log_norm <= LONGEST)[-1]
    p, v = path[place]
    limit = certify_joint_limit(Scores(E, corpus), p, v)
    found = {"certified": float(limit.holds), "certified_at": log_norm[place], "heavy": limit.heavy.sum()}
    found |= {"finite": float(limit.finite), "spare": limit.spare}
    if limit.holds:
        chosen = selection_from_scores(E @ p, corpus, tie=0.0)
        relaxed = relaxed_max_margin(Scores(E, corpus), chosen, tied=0.5).p
        found |= {"gap": max(limit.direction.gap, limit.head_gap), "from_relaxed": apart(relaxed, limit.p)}
    if not follows or limit.finite or np.isnan(limit.v).any():
        return found
    far, basis, log_r = begin(E, p, v, corpus, limit)
    with np.errstate(all="ignore"):
        times, points, came = follow(far, basis @ p, log_r, FAR)
    found["followed"] = float(came)
    if came and limit.holds and limit.p.any():
        reached, wanted = points[-1] / (2 * times[-1]), basis @ limit.p
        length = np.linalg.norm(reached) / np.linalg.norm(wanted)
        found |= {"far_error": apart(reached, wanted), "far_length": length}
    return found


def apart(x: np.ndarray, y: np.ndarray) -> float:
    """Compute 1 - cos(x, y) for vectors x and y."""
    return float(ja.theory.one_minus_cosine(x, y))


def begin(
    E: np.ndarray, p: np.ndarray, v: np.ndarray, corpus: ja.data.Corpus, limit: JointLimit
) -> tuple[Far, np.ndarray, float]:
    """Return the flow in log r, the basis of its coordinates as an (m, d) array, and log r.

    The flow uses v_mm and the heavy sequences of the certificate, but not the program of p.
    """
    ids, mask = (np.asarray(x) for x in padded_sequences(corpus))
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


def share(hit: pd.Series, known: pd.Series) -> str:
    """Format a fraction as "k of n" with its interval."""
    if not known.any():
        return "–"
    low, high = judge.share(hit, known)[1:3]
    return f"{int((hit & known).sum())} of {int(known.sum())} [{low:.3f}, {high:.3f}]"


def table(found: pd.DataFrame) -> str:
    """Return the results as a Markdown table for the page of the finding."""
    lines = [
        "| corpus | certified | of these, confirmed | wrong | p_* to p_relax, median | p to p_*, worst |",
        "| :-- | :-- | :-- | :-- | :-- | :-- |",
    ]
    for block, own in found.groupby("block", sort=False):
        certified, followed = own["certified"] == 1, own["followed"] == 1
        confirmed = certified & followed & (own["far_error"] <= AGREES)
        wrong = certified & followed & ~confirmed
        cells = [block, share(certified, own["seed"].notna()), share(confirmed, certified), str(wrong.sum())]
        away = own["from_relaxed"].median(), own["far_error"].max()
        cells += ["–" if np.isnan(x) else f"{x:.2g}" for x in away]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def distances(found: pd.DataFrame) -> Figure:
    """Plot sorted values of 1 - cos(p_relax, p_*), and of 1 - cos(p, p_*) at log r = 1e4, for each corpus."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    for axes, name, words in zip(
        figure.subplots(1, 2, sharey=True),
        ("from_relaxed", "far_error"),
        ("of p_relax and p_*", "of p at log r = 1e4 and p_*"),
        strict=True,
    ):
        for (block, own), color in zip(found.groupby("block", sort=False), DISTINCT, strict=False):
            values = np.maximum(np.sort(own[name].dropna()), 1e-17)
            axes.plot(np.arange(1, len(values) + 1), values, ".", color=color, label=block)
        axes.set(yscale="log", xlabel="seeds, sorted", title=f"1 − cos {words}")
    axes.legend()
    return figure


def runs(results: Any) -> pd.DataFrame:
    """Return a table with a row for each run: corpus, seed, and final metrics."""
    records = results.records[results.records["phase"] == "both"]
    wanted = records["metric"].isin([*Mixture.metrics, "mismatch", "came_to_end"])
    records = results.with_axes(records[wanted].dropna(subset="value"))
    records = records.groupby(["block", "seed", "metric"], sort=False)["value"].last()
    return records.unstack("metric").reset_index()


if __name__ == "__main__":
    *folders, out = map(Path, sys.argv[1:])
    try:
        everything = pd.concat([runs(ja.load(folder)) for folder in folders], ignore_index=True)
    except ja.InputError as error:
        raise SystemExit(str(error)) from None
    out.mkdir(parents=True, exist_ok=True)
    # If two folders contain the same run, keep the later one.
    everything = everything.drop_duplicates(["block", "seed"], keep="last")
    everything.to_csv(out / "runs.csv", index=False, float_format="%.6g")
    (out / "table.md").write_text(table(everything), encoding="utf-8")
    with style():
        distances(everything).savefig(out / "mixture.png", dpi=DPI)
