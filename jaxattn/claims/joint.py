"""Claim V: p and v trained together, E fixed after its one step, against p trained alone."""

from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from jaxattn import data, dynamics, theory
from jaxattn.claims.flow import Flows, Limit, certificate, distance, follow, round_up
from jaxattn.claims.limits import CLOSE_ELSEWHERE
from jaxattn.claims.rows import Claim, Row, mean, share
from jaxattn.claims.settings import Problems, Setting
from jaxattn.data.corpus import Corpus
from jaxattn.models.one_layer import Params
from jaxattn.models.reference import padded_sequences
from jaxattn.results.numbers import brief
from jaxattn.theory import Selection

# After joint training the weights of sequences in the loss differ by e^10 and more, so that the path of p
# lies some 10 nats / margin off the ray to its limit: 1 - cos = 1e-9 at ‖p‖ = 1e6, more than for p alone.
CLOSE = CLOSE_ELSEWHERE
# Length of a normalised step of (p, v) together: a tenth of a score at most, as embeddings are about 1 long.
STEP = 0.1


class Together(NamedTuple):
    """p and v after half of the joint steps and after all of them."""

    half: Params
    end: Params


def rows(flows: Flows, setting: Setting, steps: int) -> list[Row]:
    """Measure whether training v as well changes where p goes.

    p and v move by small normalised steps together. Then v is kept as it is, and gradient flow on p alone
    goes on to its limit: the limit of the selection that joint training came to. How far the jointly
    trained p itself is from the direction is measured too. It grows like log log t only, since v keeps
    growing and the loss falls like 1/t, so no run shows its limit: that row is promised and stays undecided.

    What can be seen is which way p moves. Sequences on which v's own margin is not tight lose their weight
    in the loss, and p turns to the max-margin direction of the other sequences, which is measured as well.

    Args:
        flows: the flows of p alone.
        setting: where.
        steps: joint steps, an even number.

    Source:
        Public review thread of arXiv 2505.17282.
    """
    alone = flows(setting)
    with jax.enable_x64(True):
        together = train(alone.problems, steps)
        chosen = jax.vmap(theory.selection)(together.end.p, together.end.E, alone.problems.corpora)
        onward = follow(Problems(together.end, alone.problems.corpora), until_norm=flows.until_norm)
    same = np.asarray((onward.selection.mask == alone.selection.mask).all(axis=(1, 2)))
    settled = np.asarray((chosen.mask == onward.selection.mask).all(axis=(1, 2)))
    p_mm = alone.margin.p
    before, after = (np.asarray(params.p) for params in together)
    half, end = (theory.one_minus_cosine(p, p_mm) for p in (before, after))
    moved = after - before
    tight, text = where_v_is_tight(alone, setting.relevant)
    away = distance(onward, alone.margin)
    norm = float(np.median(np.linalg.norm(after, axis=1)))
    where = f"{setting.words}; {steps} joint steps of {STEP:g}"
    statement = "training v as well does not change the limit direction of p"
    claim, finite = Claim("V", statement, where), Claim("V", statement, where, promised=False)
    turning = Claim("V", "which way p moves in the second half of the joint steps", where, promised=False)
    return [
        share(
            claim,
            "same selection as p alone",
            same,
            certificate=f"settled within the joint steps in {settled.sum()} of {len(settled)}",
        ),
        share(
            claim,
            f"1 - cos ≤ {brief(CLOSE)} to p_mm of p alone, flow of p after the joint steps",
            onward.reached & (away <= CLOSE),
            certificate=f"1 - cos ≤ {round_up(np.max(away))}, {alone.certificate}",
        ),
        mean(claim, f"1 - cos to p_mm of the jointly trained p, ‖p‖ = {norm:.0f}", end),
        share(finite, "jointly trained p nearer to p_mm at the end than at half the steps", end < half),
        mean(turning, "1 - cos of the movement to p_mm", theory.one_minus_cosine(moved, p_mm)),
        mean(
            turning,
            "1 - cos of the movement to p_mm of the sequences where v's margin is tight",
            theory.one_minus_cosine(moved, tight),
            certificate=text,
        ),
    ]


def train(problems: Problems, steps: int) -> Together:
    """Train p and v together by normalised steps in float64, all seeds at once."""
    with jax.enable_x64(True):
        half = _run(problems.params, problems.corpora, steps - steps // 2)
        return Together(half, _run(half, problems.corpora, steps // 2))


@jax.jit
def _run(params: Params, corpora: Corpus, steps: int | Array) -> Params:
    algorithm = dynamics.descent(dynamics.optimizer("normalized", STEP), train=("p", "v"))

    def one(problem: tuple[Params, Corpus]) -> Params:
        params, corpus = problem
        return dynamics.run(algorithm, algorithm.init(params), corpus, steps).params

    # One seed after the other: its arrays stay in a core's cache, which makes it faster than side by side.
    return jax.lax.map(one, (params, corpora))


def where_v_is_tight(limit: Limit, relevant: int) -> tuple[np.ndarray, str]:
    """Find the max-margin direction of those sequences on which the max-margin head is tight.

    The max-margin head is the shortest v with y E_s·v ≥ 1 for every important token s, the limit of v/‖v‖
    once attention has settled on the important tokens.

    Args:
        limit: the flow of p alone, its important tokens selected.
        relevant: tokens 0 .. relevant - 1 are the important ones, odd ones positive.

    Returns:
        (S, m) directions, and the text of their certificates; NaN for a seed without one.
    """
    E = np.asarray(limit.problems.params.E)
    found = []
    for seed in range(len(E)):
        corpus = jax.tree.map(lambda x, seed=seed: x[seed], limit.problems.corpora)
        found.append(_tight_direction(E[seed], corpus, relevant))
    facts = (np.stack([getattr(mm, name) for mm in found]) for name in _FACTS)
    return np.stack([mm.p for mm in found]), certificate(*facts)


# The order in which `certificate` takes them.
_FACTS = ("feasible", "duality_gap", "primal_residual")


def _tight_direction(E: np.ndarray, corpus: Corpus, relevant: int) -> theory.MaxMargin:
    ids, real = padded_sequences(corpus)
    sequences = [np.unique(row[mask]) for row, mask in zip(ids, real, strict=True)]
    important = np.unique(np.concatenate(sequences))
    important = important[important < relevant]
    # A head's margin is a max-margin problem of p beside a token whose embedding is 0.
    origin = len(E)
    beside = [[s, origin] for s in important.tolist()]
    pairs = data.from_sequences(beside, [1] * len(beside), vocab_size=origin + 1)
    above = important % 2 == 1
    head = theory.max_margin(
        np.concatenate([E, np.zeros((1, E.shape[1]))]), pairs, Selection(np.stack([above, ~above], axis=1))
    )
    tight = np.setdiff1d(head.pairs[head.multipliers > 0], origin)
    kept = [s.tolist() for s in sequences if np.isin(s, tight).any()]
    sub = data.from_sequences(kept, [1] * len(kept), vocab_size=len(E))
    # On the host: every seed has another shape, for which JAX would compile anew.
    chosen = (np.asarray(sub.bags.index) < relevant) & (np.asarray(sub.bags.count) > 0)
    return theory.max_margin(E, sub, Selection(chosen))
