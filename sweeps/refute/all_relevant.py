"""Full training under Assumption 1: do all relevant tokens end on top?

Token 0 is relevant for the label +1, token 1 for the label -1, and token 2 occurs with both labels. The set
{1, 2} is also a label-consistent cover: each sequence contains one of its tokens, and each token covers
sequences of one label only.
"""

from fractions import Fraction

import numpy as np

import jaxattn as ja
from jaxattn.lab.refute import Claim, Evidence, Integers, Sides, Space, flows, picture

SEQUENCES, LABELS, RELEVANT = [[0, 2], [1, 2]], [1, -1], [0, 1]
# Loss at which the flow ends: during the search, and for the evidence.
LOG_LOSS, LOG_LOSS_EVIDENCE = -100.0, -3000.0
# Starts whose loss stays large take no more steps than this.
STEPS = 5000
# Number of flows per call, because each number is compiled separately.
FLOWS = 32
# Random perturbations of the start that have to end on the same tokens.
PERTURBED, SCALE = 8, 1e-3
CORPUS = ja.data.from_sequences(SEQUENCES, LABELS, vocab_size=3)


def covers(sequences):
    """Return the label-consistent covers that lack a relevant token, as the top token of each sequence."""
    found = []
    for top in [(a, b) for a in sequences[0] for b in sequences[1]]:
        labels = {s: {y for t, y in zip(top, LABELS, strict=True) if t == s} for s in top}
        if all(len(own) == 1 for own in labels.values()) and set(RELEVANT) - set(top):
            found.append(list(top))
    return found


def assumptions(instance):
    """Return the assumption that fails: the corpus is the one above, and the start is not stationary."""
    if instance["tokens"].tolist() != SEQUENCES:
        return "the corpus is another one"
    if not instance["E"].any() or not (instance["p"].any() or instance["v"].any()):
        return "the start is stationary, or has equal scores and values"
    return ""


def exact_sides(instance):
    """Return the number of relevant tokens that a label-consistent cover lacks, and 0.

    On the r tokens of a cover, E_s = y_s v/√r gives all margins the same value, and Σ y_s E_s/√r = v and
    E_s = y_s v/√r are the stationarity conditions of min ‖E‖² + ‖v‖² for these margins. This direction exists
    for every cover, so the exact part is the cover. The flow decides numerically which one it reaches.
    """
    found = covers(instance["tokens"].tolist())
    if not found:
        return Sides(Fraction(0), Fraction(0))
    missing = min(len(set(RELEVANT) - set(top)) for top in found)
    return Sides(Fraction(missing), Fraction(0), {"covers without a relevant token": found})


def flow(batch, log_loss, rtol=1e-8):
    """Integrate gradient flow on E, p and v for a batch of starts."""
    start = {name: batch[name].astype(float) for name in ("E", "p", "v")}
    return ja.dynamics.full_flow(start, CORPUS, until_log_loss=log_loss, rtol=rtol, points=8, max_steps=STEPS)


def ends(path):
    """Return whether each path reached its loss, the top token of each sequence, and its attention."""
    E, p = path.E[:, -1], path.p[:, -1]
    scores = np.nan_to_num(np.einsum("bvr,br->bv", E, p))
    weights = np.stack(
        [np.exp(scores[:, x] - scores[:, x].max(axis=1, keepdims=True)) for x in SEQUENCES], axis=1
    )
    attention = weights / weights.sum(axis=2, keepdims=True)
    top = np.array(SEQUENCES)[np.arange(len(SEQUENCES)), attention.argmax(axis=2)]
    return path.status == ja.dynamics.Stop.LOSS, top, attention


def score(batch):
    """Return the scores of a batch, in parts of `FLOWS` instances."""
    return flows.in_parts(part_score, batch, FLOWS)


def part_score(batch):
    """Return ½ minus the smallest attention on a relevant token, -inf if the loss stays large."""
    reached, _, attention = ends(flow(batch, LOG_LOSS))
    return np.where(reached, 0.5 - attention[:, :, 0].min(axis=1), -np.inf)


def evidence(instance):
    """Integrate the flow from the start and from perturbed starts, with two tolerances."""
    rng = np.random.default_rng(0)
    starts = {}
    for name in ("E", "p", "v"):
        noise = rng.normal(size=(PERTURBED + 1, *instance[name].shape)) * SCALE
        noise[0] = 0
        starts[name] = instance[name] + noise
    values, tops, reached = [], [], []
    for rtol in (1e-8, 1e-10):
        path = flow(starts, LOG_LOSS_EVIDENCE, rtol)
        at_end, top, _ = ends(path)
        E, v = path.E[:, -1], path.v[:, -1]
        values += (np.abs(np.einsum("br,br->b", E[:, 2], v)) / (v**2).sum(axis=1)).tolist()
        tops += top.tolist()
        reached += at_end.tolist()
    same = all(top == tops[0] for top in tops) and tops[0] in covers(SEQUENCES)
    return Evidence(
        contradicts=bool(all(reached) and same and min(values) > 0.5),
        status="loss" if all(reached) else "not reached",
        certificate=f"all {len(tops)} flows, from the start and {PERTURBED} starts perturbed by {SCALE:g}, "
        f"end on the tokens {sorted(set(tops[0]))} at log L = {LOG_LOSS_EVIDENCE:g}",
        quantity="|E_2·v|/‖v‖² on the irrelevant token, whose value on this cover is 1/√2 ≈ 0.7071",
        low=min(values),
        high=max(values),
        predicted=0.0,
        interval="range over the start, the perturbed starts and two tolerances",
    )


def draw(instance, axes):
    """Draw the embeddings, p and v at the start."""
    if instance["E"].shape[1] == 2:
        given = {name: instance[name] for name in ("p", "v") if instance[name].any()}
        picture.draw_directions(axes, given, 1.0)
        picture.draw_tokens(axes, instance["E"].astype(float))
        axes.set_aspect("equal")


claim = Claim(
    statement=(
        "Under Assumption 1, gradient flow on E, p and v together ends with all relevant tokens on top, with "
        "E_s·v → y_s ‖v‖²/√r on all r of them and 0 elsewhere: the number of relevant tokens that are not on "
        "top is ≤ 0. Here the sequences are {0, 2} with label +1 and {1, 2} with label -1."
    ),
    source="A conjecture of this project, which docs/notes/full_flow.md replaced.",
    hypothesis="Assumption 1: each sequence contains exactly one relevant token. The start is arbitrary.",
    repaired=(
        "The tokens that end on top form a label-consistent cover of r_eff tokens, and r_eff replaces r."
    ),
    space=Space(
        arrays={
            "tokens": Integers("sequence slot", 0, 2),
            "E": Integers("token dim", -1, 1),
            "p": Integers("dim", -1, 1),
            "v": Integers("dim", -1, 1),
        },
        sizes=({"sequence": 2, "slot": 2, "token": 3, "dim": 2},),
        repair=lambda batch: {**batch, "tokens": np.broadcast_to(SEQUENCES, batch["tokens"].shape)},
    ),
    score=score,
    batched=True,
    flows=FLOWS,
    batch=128,
    assumptions=assumptions,
    exact=exact_sides,
    evidence=evidence,
    control={"tokens": [[0, 0], [1, 1]], "E": [[1], [-1], [0]], "p": [0], "v": [1]},
    check="checks/all_relevant.py",
    horizon=f"log L = {LOG_LOSS:g}",
    fixed=("sequence", "slot", "token"),
    draw=draw,
)
