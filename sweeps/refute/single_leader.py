"""Open lemma: hardmax attention has a single leader for almost every start (arXiv 2508.09628).

With P = (I + V)⁻¹ V, a token moves to (I - P) x_i + P y_i, where y_i maximises ⟨B x_i, ·⟩ over the tokens.
While the choices of the y_i stay the same, positions are linear in the start, x_i(t) = Σ_a M_ia x_a. A
counterexample is an open set of starts on which two distinct points tie: ⟨B x_i(t), x_j(t) - x_k(t)⟩ = 0
identically, but not x_j(t) = x_k(t).

The search cannot succeed. All M satisfy Σ_a M_ia = I, so moving all starts by c moves all points by c. This
changes the form by ⟨Bc, x_j(t) - x_k(t)⟩. If the form is 0 on an open set, x_j(t) = x_k(t) there, because B
is invertible. The starts with a tie of distinct points are therefore a null set in each of the finitely many
pieces. This proves the lemma under the assumptions that are used here.
"""

from fractions import Fraction

import numpy as np

from jaxattn.lab.refute import Claim, Integers, Sides, Space, exact

STEPS = 3


def inverse(A):
    """Return the inverse of a rational matrix as an object array, or None."""
    size = len(A)
    columns = [exact.solve(A, [Fraction(int(i == j)) for i in range(size)]) for j in range(size)]
    return None if columns[0] is None else np.array(columns, object).T


def mixing(V):
    """Return P = (I + V)⁻¹ V, or None if I + V is singular."""
    found = inverse(exact.matrix(V + np.eye(len(V), dtype=int)))
    return None if found is None else found @ np.array(exact.matrix(V), object)


def assumptions(instance):
    """Return the assumption that fails: B_t and I + V_t are invertible."""
    for B, V in zip(instance["B"], instance["V"], strict=True):
        if exact.determinant(exact.matrix(B)) == 0:
            return "B is not invertible"
        if mixing(V) is None:
            return "I + V is not invertible"
    return ""


def identically_zero(B, M, difference):
    """Return whether ⟨B Σ M_a x_a, Σ D_b x_b⟩ = 0 for all x: its blocks N_ab + N_baᵀ vanish."""
    blocks = [[m.T @ B.T @ d for d in difference] for m in M]
    n = range(len(M))
    return not any((blocks[a][b] + blocks[b][a].T != 0).any() for a in n for b in n)


def exact_sides(instance):
    """Return the number of ties of distinct points that hold on an open set around the start, and 0.

    A start with another tie is on the boundary of a piece; its trajectory is not determined from there on.
    """
    x = np.array(exact.matrix(instance["tokens"]), object)
    n, d = x.shape
    unit = np.array(exact.matrix(np.eye(d, dtype=int)), object)
    M = np.array([[unit * int(a == i) for a in range(n)] for i in range(n)], object)
    for t, (B, V) in enumerate(zip(instance["B"], instance["V"], strict=True)):
        B, P = np.array(exact.matrix(B), object), mixing(V)
        values = (x @ B.T) @ x.T
        aims = []
        for i in range(n):
            best = [j for j in range(n) if values[i, j] == values[i].max()]
            distinct = [j for j in best if (x[j] != x[best[0]]).any()]
            for j in distinct:
                if identically_zero(B, M[i], M[j] - M[best[0]]):
                    return Sides(Fraction(1), Fraction(0), {"step": t, "token": i, "tied": [best[0], j]})
            if distinct:
                return Sides(Fraction(0), Fraction(0), {"step": t, "token": i}, "the start itself ties")
            aims.append(best[0])
        stay = unit - P
        x = np.array([stay @ x[i] + P @ x[aim] for i, aim in enumerate(aims)], object)
        M = np.array(
            [[stay @ M[i, a] + P @ M[aim, a] for a in range(n)] for i, aim in enumerate(aims)], object
        )
    return Sides(Fraction(0), Fraction(0))


def score(batch):
    """Return 1 for a tie on an open set, decided exactly; else minus the smallest gap of distinct points."""
    x, gap = batch["tokens"].astype(float), np.full(len(batch["tokens"]), np.inf)
    unit = np.eye(x.shape[2])
    with np.errstate(all="ignore"):
        valid = (np.abs(np.linalg.det(batch["B"])) > 0.5).all(axis=1)
        valid &= (np.abs(np.linalg.det(batch["V"] + unit)) > 0.5).all(axis=1)
        for t in range(batch["B"].shape[1]):
            values = np.einsum("bij,bnj,bmi->bnm", batch["B"][:, t], x, x)
            aim = x[np.arange(len(x))[:, None], values.argmax(axis=2)]
            far = np.abs(x[:, None] - aim[:, :, None]).max(axis=3) > 1e-9
            below = values.max(axis=2, keepdims=True) - np.where(far, values, -np.inf)
            gap = np.minimum(gap, below.min(axis=(1, 2)))
            stay = np.linalg.inv(np.where(valid[:, None, None], batch["V"][:, t] + unit, unit))
            x = x @ stay.swapaxes(1, 2) + aim @ (unit - stay).swapaxes(1, 2)
    found = np.where(valid, -gap, -np.inf)
    for index in np.flatnonzero(valid & (gap < 1e-9)):
        found[index] = float(exact_sides({name: y[index] for name, y in batch.items()}).left)
    return found


claim = Claim(
    statement=(
        "For almost every start of hardmax attention, the points that maximise ⟨B_t x_i(t), ·⟩ over the "
        "tokens are a single point for all t and i: the number of ties of distinct points that hold on an "
        "open set of starts is ≤ 0."
    ),
    source=(
        "arXiv 2508.09628, lem:singleLeader. Read as transcribed in a Lean formalisation, which notes that "
        "the last step of the proof is wrong; the exact wording in the paper was not read."
    ),
    hypothesis="B_t is invertible, I + V_t is invertible, P_t = (I + V_t)⁻¹ V_t, averaging over the argmax.",
    space=Space(
        arrays={
            "tokens": Integers("token dim", -3, 3),
            "B": Integers("time dim dim", -2, 2),
            "V": Integers("time dim dim", -2, 2),
        },
        sizes=(
            {"token": 3, "dim": 1, "time": STEPS},
            {"token": 3, "dim": 2, "time": STEPS},
            {"token": 4, "dim": 2, "time": STEPS},
        ),
    ),
    score=score,
    batched=True,
    batch=1024,
    assumptions=assumptions,
    exact=exact_sides,
    control={"tokens": [[1], [-2], [3]], "B": [[[1]]] * STEPS, "V": [[[1]]] * STEPS},
    horizon=f"{STEPS} steps",
)
