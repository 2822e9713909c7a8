"""Training the head v together with the query p: does p still converge to the max-margin direction?

Sequence i contains token 0, whose embedding is 0, and a token with the embedding x_i. The max-margin
direction of p separates x_i from 0 in all sequences. If v is trained too, only sequences on the margin of v
continue to move p.
"""

from fractions import Fraction

import numpy as np

import jaxattn as ja
from jaxattn.dynamics import Stop
from jaxattn.lab.refute import Claim, Evidence, Integers, Sides, Space, exact, flows, picture

# Instances per batch whose flow is integrated: those with the largest angle between the two directions.
FLOWS = 16
NORM, SETTLED, APART = 200.0, 1e-6, 1e-3


def parts(instance):
    """Return the embeddings, sequences, labels and selected tokens of an instance."""
    points = exact.matrix(instance["points"])
    count = range(1, len(points) + 1)
    E = [[Fraction(0)] * len(points[0]), *points]
    return E, [[0, i] for i in count], [int(y) for y in instance["labels"]], list(count)


def assumptions(instance):
    """Return the assumption that fails: labels ±1, and separable sequences, for p and for v."""
    if (np.abs(instance["labels"]) != 1).any():
        return "a label is not ±1"
    head, hard, relaxed = exact.joint_directions(*parts(instance))
    if head is None or hard is None or relaxed is None:
        return "the sequences cannot be separated"
    return ""


def exact_sides(instance):
    """Return sin² of the angle between p_mm and p_relax, and 0."""
    E, sequences, labels, top = parts(instance)
    head, hard, relaxed = exact.joint_directions(E, sequences, labels, top)
    witness = {
        name: list(map(str, found.x))
        for name, found in zip(("v_mm", "p_mm", "p_relax"), (head, hard, relaxed), strict=True)
    }
    boundary = "p_relax is 0" if not any(relaxed.x) else ""
    # On the margin of v_mm without a multiplier: the weight of the sequence in the flow is not determined.
    for s, y, weight in zip(top, labels, head.multipliers, strict=True):
        if y * exact.dot(E[s], head.x) == 1 and weight == 0:
            boundary = "a sequence on the margin of v_mm has no multiplier"
    left = Fraction(0) if boundary == "p_relax is 0" else exact.sine_squared(hard.x, relaxed.x)
    return Sides(left, Fraction(0), witness, boundary)


def flow(points, labels, rtol=1e-5, until_norm=NORM):
    """Integrate gradient flow on p and v from 0 for a batch of instances."""
    number, n, d = points.shape
    E = np.concatenate([np.zeros((number, 1, d)), points], axis=1)
    corpus = flows.corpora([[0, i + 1] for i in range(n)], labels, n + 1)
    start = {"E": E, "p": np.zeros((number, d)), "v": np.zeros((number, d))}
    return ja.dynamics.joint_flow(start, corpus, until_norm=until_norm, rtol=rtol)


def directions(points, labels):
    """Return p_mm and p_relax for a batch, in floating point; NaN if the sequences cannot be separated."""
    ones = np.ones(labels.shape)
    signed = labels[:, :, None] * points
    head, hard = flows.shortest_batch(signed, ones), flows.shortest_batch(points, ones)
    tight = np.einsum("bnd,bd->bn", signed, head) < 1 + 1e-9
    relaxed = flows.shortest_batch(points, tight.astype(float))
    return hard, np.where(np.isnan(head), np.nan, relaxed)


def score(batch):
    """Return 1 - cos between the end and p_mm if the flow ends at p_relax, else a rank below 0."""
    points, labels = batch["points"].astype(float), batch["labels"]
    hard, relaxed = directions(points, labels)
    apart = flows.one_minus_cosine(hard, relaxed)
    labelled = (np.abs(labels) == 1).all(axis=1)
    rank = np.where(np.isnan(apart) | ~labelled, -np.inf, apart - 3)
    order = flows.largest(rank, FLOWS)
    path = flow(points[order], labels[order])
    end, normal = path.p[:, -1], path.status == Stop.NORM
    settled = normal & (flows.one_minus_cosine(end, relaxed[order]) < SETTLED)
    found = flows.one_minus_cosine(end, hard[order])
    rank[order] = np.where(settled & (found > APART), found, np.minimum(rank[order], -1))
    return rank


def repair(batch):
    """Replace the label 0 by 1."""
    return {**batch, "labels": np.where(batch["labels"] == 0, 1, batch["labels"])}


def evidence(instance):
    """Integrate the flow with two tolerances, and compare p with both exact directions."""
    E, sequences, labels, top = parts(instance)
    _, hard, relaxed = (
        np.array(found.x, float) for found in exact.joint_directions(E, sequences, labels, top)
    )
    found, ends, names = [], [], set()
    for rtol in (1e-5, 1e-7):
        path = flow(instance["points"][None].astype(float), instance["labels"][None], rtol)
        late = path.norm[0] >= path.norm[0, -1] / 10
        found += flows.one_minus_cosine(path.p[0][late], hard).tolist()
        ends.append(float(flows.one_minus_cosine(path.p[0, -1], relaxed)))
        names.add(Stop(int(path.status[0])).name.lower())
    return Evidence(
        contradicts=names == {"norm"} and max(ends) < SETTLED and min(found) > APART,
        status="/".join(sorted(names)),
        certificate=f"1 - cos between p and p_relax is at most {max(ends):.1e} at ‖p‖ = {NORM:g}, mismatch "
        f"{float(path.mismatch[0]):.1e}",
        quantity="1 - cos between p and p_mm",
        low=min(found),
        high=max(found),
        predicted=0.0,
        interval="range over the last decade of ‖p‖ and two tolerances",
    )


def draw(instance, axes):
    """Draw the tokens, and the directions p_mm, p_relax and v_mm."""
    if instance["points"].shape[1] != 2:
        return
    head, hard, relaxed = (np.array(found.x, float) for found in exact.joint_directions(*parts(instance)))
    points = np.concatenate([np.zeros((1, 2)), instance["points"]])
    names = ["0", *(f"x{i + 1} ({'+' if y > 0 else '-'})" for i, y in enumerate(instance["labels"]))]
    picture.draw_directions(
        axes, {"p_mm": hard, "p_relax": relaxed, "v_mm": head}, np.abs(points).max() * 1.2
    )
    picture.draw_tokens(axes, points, names)
    axes.set_aspect("equal")


claim = Claim(
    statement=(
        "Sequence i consists of the origin 0 and of the point x_i, with label y_i. E is fixed, and p and v "
        "follow gradient flow of the logistic loss. If each sequence attends to a "
        "single token in the limit, p converges in direction to the max-margin direction p_mm of these "
        "tokens, as it does for a fixed v: sin²(p_mm, lim p) ≤ 0."
    ),
    source=(
        "A conjecture of this project, which docs/notes/joint_flow.md replaced: training v does not change "
        "the limit of p."
    ),
    hypothesis=(
        "The sequences are separable for p and for v, and attention converges to one token per sequence."
    ),
    repaired=(
        "p converges in direction to p_relax, which requires a margin only in sequences on the margin of v."
    ),
    space=Space(
        arrays={"points": Integers("sequence dim", -3, 3), "labels": Integers("sequence", -1, 1)},
        sizes=({"sequence": 2, "dim": 2}, {"sequence": 3, "dim": 2}),
        repair=repair,
    ),
    score=score,
    batched=True,
    batch=1024,
    flows=FLOWS,
    assumptions=assumptions,
    exact=exact_sides,
    evidence=evidence,
    control={"points": [[1, 0], [0, 1]], "labels": [1, 1]},
    check="checks/trained_head.py",
    horizon=f"‖p‖ = {NORM:g}",
    draw=draw,
)
