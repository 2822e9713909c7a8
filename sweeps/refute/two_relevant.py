"""Two relevant tokens in a sequence: is p_relax still the limit of p when p and v are trained?

The sequences are {0, 1, 4} and {0, 4} with label +1, {2, 3, 4} and {3, 4} with label -1. Tokens 0 and 1 are
relevant for +1, and tokens 2 and 3 for -1. If 2 and 3 are both selected, each in one sequence, they have the
same value under v_mm. Their pair is repelled by the force e^(-gap)/r instead of e^(-gap), so it requires half
a margin. docs/notes/which_mixture.md derives the limit p_*.
"""

import sys
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np

import jaxattn as ja
from jaxattn.dynamics import Stop
from jaxattn.lab.refute import Claim, Evidence, Integers, Sides, Space, exact, flows, picture

SEQUENCES, LABELS = [[0, 1, 4], [2, 3, 4], [0, 4], [3, 4]], [1, -1, 1, -1]
CORPUS = ja.data.from_sequences(SEQUENCES, LABELS, vocab_size=5)
TOPS = list(product(*SEQUENCES))
HALF = Fraction(1, 2)
# Instances per batch whose flow is integrated: those with the largest angle between p_* and p_relax.
FLOWS = 16
STEPS = 2000
NORM, NORM_EVIDENCE, SETTLED, APART, CERTIFIED = 1e3, 1e4, 1e-5, 1e-3, 1e-9


def assumptions(instance):
    """Return the assumption that fails: a limit with one top token per sequence exists."""
    return "" if limits(exact.matrix(instance["E"])) else "no limit with one token per sequence"


def limits(E):
    """Return (p_*, p_relax, top tokens) for each consistent choice of one top token per sequence."""
    return [found for top in TOPS if (found := limit(E, top)) is not None]


def limit(E, top):
    """Return p_*, p_relax and the top tokens if the choice of top tokens is consistent, else None.

    Heavy sequences have margin 1 under v_mm, and light ones more. p_* is the shortest p with

        a_top - a_s ≥ 1    in heavy sequences for y γ_s < 1,
        a_top - a_s ≥ 1/2  in heavy sequences for y γ_s = 1,
        a_top - a_s ≥ 0    in light sequences,

    and with a_top > a_s + 1 for y γ_s > 1 in heavy sequences, and top tokens strictly on top. p_relax
    requires 1 also for y γ_s = 1.
    """
    signed = [[y * x for x in E[t]] for t, y in zip(top, LABELS, strict=True)]
    head = exact.shortest(signed, [Fraction(1)] * len(signed))
    if head is None:
        return None
    heavy = [exact.dot(x, head.x) == 1 for x in signed]
    weight = dict.fromkeys(top, Fraction(0))
    for t, multiplier in zip(top, head.multipliers, strict=True):
        weight[t] += multiplier
    if any(tight and weight[t] == 0 for t, tight in zip(top, heavy, strict=True)):
        return None
    rows, required, relaxed, strict = [], [], [], []
    for tokens, y, t, tight in zip(SEQUENCES, LABELS, top, heavy, strict=True):
        for s in tokens:
            if s == t:
                continue
            value, row = y * exact.dot(E[s], head.x), exact.minus(E[t], E[s])
            rows.append(row)
            required.append(Fraction(0) if not tight or value > 1 else HALF if value == 1 else Fraction(1))
            relaxed.append(Fraction(int(tight)))
            strict.append((row, Fraction(1) if tight and value > 1 else Fraction(0)))
    p, p_relax = exact.shortest(rows, required), exact.shortest(rows, relaxed)
    if p is None or p_relax is None or any(exact.dot(row, p.x) <= least for row, least in strict):
        return None
    return p.x, p_relax.x, top


def exact_sides(instance):
    """Return sin² of the angle between p_* and p_relax, and 0, for the limit with the largest angle."""
    found = [(exact.sine_squared(p, q), p, q, top) for p, q, top in limits(exact.matrix(instance["E"]))]
    left, p, q, top = max(found)
    witness = {"top": list(top), "p_*": list(map(str, p)), "p_relax": list(map(str, q))}
    return Sides(left, Fraction(0), witness)


def approximate(E):
    """Return p_*, p_relax and their 1 - cos for a batch, as in `limit`; NaN and -inf without a limit."""
    best = np.full((len(E), 2, E.shape[2]), np.nan)
    apart = np.full(len(E), -np.inf)
    labels = np.array(LABELS)
    for top in TOPS:
        signed = labels[:, None] * E[:, list(top)]
        head = flows.shortest_batch(signed, np.ones((len(E), 4)))
        margin = np.einsum("bnd,bd->bn", signed, head)
        rows, required, relaxed, strict = [], [], [], []
        for X, (tokens, y, t) in enumerate(zip(SEQUENCES, LABELS, top, strict=True)):
            tight = margin[:, X] < 1 + 1e-9
            for s in tokens:
                if s != t:
                    value = y * np.einsum("bd,bd->b", E[:, s], head)
                    tied, above = np.abs(value - 1) < 1e-9, value > 1 + 1e-9
                    rows.append(E[:, t] - E[:, s])
                    required.append(np.where(tight & ~above, np.where(tied, 0.5, 1.0), 0.0))
                    relaxed.append(tight.astype(float))
                    strict.append(np.where(tight & above, 1.0, 0.0))
        rows = np.stack(rows, axis=1)
        p = flows.shortest_batch(rows, np.stack(required, axis=1))
        q = flows.shortest_batch(rows, np.stack(relaxed, axis=1))
        slack = np.einsum("bmd,bd->bm", rows, p) - np.stack(strict, axis=1)
        found = flows.one_minus_cosine(p, q)
        better = (slack > 1e-9).all(axis=1) & ~np.isnan(found) & (found > apart)
        best[better, 0], best[better, 1], apart[better] = p[better], q[better], found[better]
    return best[:, 0], best[:, 1], apart


def flow(E, rtol=1e-5, until_norm=NORM):
    """Integrate gradient flow on p and v from 0 for a batch of embeddings."""
    zero = np.zeros((len(E), E.shape[2]))
    return ja.dynamics.joint_flow(
        {"E": E, "p": zero, "v": zero}, CORPUS, until_norm=until_norm, rtol=rtol, max_steps=STEPS
    )


def score(batch):
    """Return 1 - cos between the end of the flow and p_relax if it ends at p_*, else a rank below 0."""
    E = batch["E"].astype(float)
    p, q, apart = approximate(E)
    rank = np.where(np.isfinite(apart), apart - 3, -np.inf)
    order = flows.largest(rank, FLOWS)
    path = flow(E[order])
    end, normal = path.p[:, -1], path.status == Stop.NORM
    settled = normal & (flows.one_minus_cosine(end, p[order]) < SETTLED)
    found = flows.one_minus_cosine(end, q[order])
    rank[order] = np.where(settled & (found > APART), found, np.minimum(rank[order], -1))
    return rank


def certified(E, path):
    """Return the certificate of the limit at the end of a path, from the finding `which_mixture`."""
    folder = str(Path(__file__).parents[1] / "findings" / "which_mixture")
    if folder not in sys.path:
        sys.path.append(folder)
    from joint_limit import certify_joint_limit

    v = path.v[0, -1] * np.exp(min(path.log_v_norm[0, -1], 300.0))
    return certify_joint_limit(ja.theory.Scores(E, CORPUS), path.p[0, -1], v)


def evidence(instance):
    """Integrate the flow with two tolerances, certify its limit, and compare p with p_* and p_relax."""
    found = max((exact.sine_squared(p, q), p, q, top) for p, q, top in limits(exact.matrix(instance["E"])))
    E = instance["E"].astype(float)
    limit_p, relaxed = (np.array(x, float) for x in found[1:3])
    values, ends, names, holds = [], [], set(), True
    for rtol in (1e-5, 1e-7):
        path = flow(E[None], rtol, NORM_EVIDENCE)
        late = path.norm[0] >= path.norm[0, -1] / 10
        values += flows.one_minus_cosine(path.p[0][late], relaxed).tolist()
        ends.append(float(flows.one_minus_cosine(path.p[0, -1], limit_p)))
        names.add(Stop(int(path.status[0])).name.lower())
        limit = certified(E, path)
        holds &= limit.holds and bool(flows.one_minus_cosine(limit.p, limit_p) < CERTIFIED)
    return Evidence(
        contradicts=names == {"norm"} and holds and max(ends) < SETTLED and min(values) > APART,
        status="/".join(sorted(names)),
        certificate=f"certify_joint_limit {'certifies p_*' if holds else 'does not certify p_*'}; 1 - cos "
        f"between p and p_* is at most {max(ends):.1e} at ‖p‖ = {NORM_EVIDENCE:g}, "
        f"mismatch {float(path.mismatch[0]):.1e}",
        quantity="1 - cos between p and p_relax",
        low=min(values),
        high=max(values),
        predicted=0.0,
        interval="range over the last decade of ‖p‖ and two tolerances",
    )


def draw(instance, axes):
    """Draw the embeddings, and the directions p_* and p_relax."""
    if instance["E"].shape[1] != 2:
        return
    witness = exact_sides(instance).witness
    given = {name: [float(Fraction(x)) for x in witness[name]] for name in ("p_*", "p_relax")}
    picture.draw_directions(axes, given, np.abs(instance["E"]).max() * 1.2)
    picture.draw_tokens(axes, instance["E"].astype(float))
    axes.set_aspect("equal")


claim = Claim(
    statement=(
        "E is fixed, and p and v follow gradient flow of the logistic loss. Also with two relevant tokens in "
        "a sequence, p converges in direction to p_relax of the tokens that end on top: "
        "sin²(p_relax, lim p) ≤ 0. Here the sequences are {0, 1, 4}+, {2, 3, 4}-, {0, 4}+ and {3, 4}-."
    ),
    source=(
        "A conjecture of this project, which docs/findings/which_mixture.md replaced. p_relax is the limit "
        "of the regularisation path (arXiv 2306.13596), `relaxed_max_margin` with tied = 1."
    ),
    hypothesis="Attention converges to one token per sequence, and the joint flow ends with the status norm.",
    repaired="Pairs of tokens of the same value under v_mm require half a margin: p converges to p_*.",
    space=Space(
        arrays={"E": Integers("token dim", -3, 3)},
        sizes=({"token": 5, "dim": 2}, {"token": 5, "dim": 3}),
    ),
    score=score,
    batched=True,
    batch=1024,
    flows=FLOWS,
    assumptions=assumptions,
    exact=exact_sides,
    evidence=evidence,
    control={"E": [[1, 1], [1, 0], [-1, 0], [-1, 1], [0, 0]]},
    check="checks/two_relevant.py",
    horizon=f"‖p‖ = {NORM:g}",
    fixed=("token",),
    draw=draw,
)
