"""Linear algebra and small convex programs in rational arithmetic.

Vectors and matrices are lists of `fractions.Fraction`. Programs are solved by enumerating sets of active
constraints, so they are for a handful of constraints in a handful of dimensions.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

Vector = list[Fraction]
Matrix = list[Vector]


def vector(values: Iterable[object]) -> Vector:
    """Convert numbers, such as a row of an integer array, to fractions.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.vector(["1/3", 2])
        [Fraction(1, 3), Fraction(2, 1)]
    """
    return [Fraction(str(x)) for x in values]


def matrix(rows: Iterable[Iterable[object]]) -> Matrix:
    """Convert rows of numbers to fractions.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.matrix([[1, 2]])
        [[Fraction(1, 1), Fraction(2, 1)]]
    """
    return [vector(row) for row in rows]


def dot(x: Sequence[Fraction], y: Sequence[Fraction]) -> Fraction:
    """Return x·y.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.dot(exact.vector([1, 2]), exact.vector([3, "1/2"]))
        Fraction(4, 1)
    """
    return sum((a * b for a, b in zip(x, y, strict=True)), Fraction(0))


def minus(x: Sequence[Fraction], y: Sequence[Fraction]) -> Vector:
    """Return x - y.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.minus(exact.vector([1, 2]), exact.vector([3, 2]))
        [Fraction(-2, 1), Fraction(0, 1)]
    """
    return [a - b for a, b in zip(x, y, strict=True)]


def times(A: Sequence[Sequence[Fraction]], x: Sequence[Fraction]) -> Vector:
    """Return A x.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.times(exact.matrix([[1, 2], [0, 1]]), exact.vector([3, 4]))
        [Fraction(11, 1), Fraction(4, 1)]
    """
    return [dot(row, x) for row in A]


def combine(weights: Sequence[Fraction], rows: Sequence[Sequence[Fraction]]) -> Vector:
    """Return Σ w_i row_i for at least one row.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.combine(exact.vector([1, 2]), exact.matrix([[1, 0], [1, 1]]))
        [Fraction(3, 1), Fraction(2, 1)]
    """
    return [dot(weights, column) for column in zip(*rows, strict=True)]


def solve(A: Sequence[Sequence[Fraction]], b: Sequence[Fraction]) -> Vector | None:
    """Solve the square system A x = b; return None if A is singular.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.solve(exact.matrix([[2, 1], [1, 3]]), exact.vector([1, 0]))
        [Fraction(3, 5), Fraction(-1, 5)]
    """
    size = len(A)
    rows = [[*row, right] for row, right in zip(A, b, strict=True)]
    for column in range(size):
        pivot = next((i for i in range(column, size) if rows[i][column] != 0), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [x / rows[column][column] for x in rows[column]]
        for i in range(size):
            if i != column and rows[i][column] != 0:
                factor = rows[i][column]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[column], strict=True)]
    return [row[-1] for row in rows]


def determinant(A: Sequence[Sequence[Fraction]]) -> Fraction:
    """Return the determinant of a square matrix by expansion along the first row.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.determinant(exact.matrix([[2, 1], [1, 3]]))
        Fraction(5, 1)
    """
    if not A:
        return Fraction(1)
    signed = ((-1) ** j * x * determinant([[*r[:j], *r[j + 1 :]] for r in A[1:]]) for j, x in enumerate(A[0]))
    return sum(signed, Fraction(0))


def is_positive_semidefinite(A: Sequence[Sequence[Fraction]]) -> bool:
    """Return whether a symmetric matrix is positive semidefinite: no principal minor is negative.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.is_positive_semidefinite(exact.matrix([[1, 2], [2, 4]]))
        True
    """
    size = len(A)
    chosen = (x for k in range(1, size + 1) for x in combinations(range(size), k))
    return all(determinant([[A[i][j] for j in own] for i in own]) >= 0 for own in chosen)


class Shortest(NamedTuple):
    """Solution of a least-norm problem, with the multipliers that prove it.

    Attributes:
        x: (d,); the shortest vector, x = Aᵀ λ.
        multipliers: (m,); λ ≥ 0, with λ_i > 0 only if (A x)_i = b_i.
    """

    x: Vector
    multipliers: Vector


def shortest(A: Sequence[Sequence[Fraction]], b: Sequence[Fraction]) -> Shortest | None:
    """Return the shortest x with A x ≥ b, with its multipliers, or None if there is no such x.

        min ‖x‖²  s.t.  A x ≥ b

    x is unique, and x = A_Sᵀ λ_S with λ_S = (A_S A_Sᵀ)⁻¹ b_S > 0 for linearly independent rows S that are
    active at x. The function tries all S.

    Args:
        A: (m, d), m ≥ 1.
        b: (m,).

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.shortest(exact.matrix([[1, 1], [1, -1]]), exact.vector([1, 1])).x
        [Fraction(1, 1), Fraction(0, 1)]
    """
    m, d = len(A), len(A[0])
    if all(y <= 0 for y in b):
        return Shortest([Fraction(0)] * d, [Fraction(0)] * m)
    for count in range(1, min(m, d) + 1):
        for active in combinations(range(m), count):
            rows = [A[i] for i in active]
            found = solve([[dot(x, y) for y in rows] for x in rows], [b[i] for i in active])
            if found is None or any(weight <= 0 for weight in found):
                continue
            x = combine(found, rows)
            if all(left >= right for left, right in zip(times(A, x), b, strict=True)):
                given = dict(zip(active, found, strict=True))
                return Shortest(x, [given.get(i, Fraction(0)) for i in range(m)])
    return None


def hull_weights(points: Sequence[Sequence[Fraction]], x: Sequence[Fraction]) -> Vector | None:
    """Return weights w ≥ 0, Σ w = 1, with Σ w_i point_i = x, or None if x is outside the convex hull.

    By Carathéodory's theorem, at most d + 1 affinely independent points suffice; the function tries them all.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.hull_weights(exact.matrix([[0, 0], [4, 0]]), exact.vector([1, 0]))
        [Fraction(3, 4), Fraction(1, 4)]
    """
    n, d = len(points), len(x)
    for count in range(1, min(n, d + 1) + 1):
        for own in combinations(range(n), count):
            rows = [[*points[i], Fraction(1)] for i in own]
            target = [*x, Fraction(1)]
            found = solve([[dot(a, b) for b in rows] for a in rows], [dot(a, target) for a in rows])
            if found is None or any(w < 0 for w in found) or combine(found, rows) != target:
                continue
            given = dict(zip(own, found, strict=True))
            return [given.get(i, Fraction(0)) for i in range(n)]
    return None


def sine_squared(x: Sequence[Fraction], y: Sequence[Fraction]) -> Fraction:
    """Return sin² of the angle between two vectors that are not zero.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> exact.sine_squared(exact.vector([1, 0]), exact.vector([1, 1]))
        Fraction(1, 2)
    """
    return 1 - dot(x, y) ** 2 / (dot(x, x) * dot(y, y))


def joint_directions(
    E: Sequence[Sequence[Fraction]],
    sequences: Sequence[Sequence[int]],
    labels: Sequence[int],
    top: Sequence[int],
) -> tuple[Shortest | None, Shortest | None, Shortest | None]:
    """Return v_mm, p_mm and p_relax for the top token of each sequence; None where there is no solution.

        v_mm    = argmin ‖v‖²  s.t.  y E_top·v ≥ 1 for all sequences,
        p_mm    = argmin ‖p‖²  s.t.  p·(E_top - E_s) ≥ 1 for all other tokens s of all sequences,
        p_relax = the same with 1 only where y E_top·v_mm = 1, and 0 elsewhere.

    Args:
        E: (V, d); embeddings.
        sequences: distinct tokens of each of n sequences, at least one with two tokens.
        labels: (n,); ±1.
        top: (n,); the top token of each sequence.

    Example:
        >>> from jaxattn.lab.refute import exact
        >>> E = exact.matrix([[1, 0], [0, 1], [-1, 0]])
        >>> v_mm, p_mm, p_relax = exact.joint_directions(E, [[0, 1], [2, 1]], [1, -1], [0, 2])
        >>> v_mm.x, p_mm.x
        ([Fraction(1, 1), Fraction(0, 1)], [Fraction(0, 1), Fraction(-1, 1)])
    """
    head = shortest(
        [[y * x for x in E[s]] for s, y in zip(top, labels, strict=True)], [Fraction(1)] * len(top)
    )
    rows, relaxed = [], []
    for tokens, y, s in zip(sequences, labels, top, strict=True):
        tight = head is not None and y * dot(E[s], head.x) == 1
        for t in tokens:
            if t != s:
                rows.append(minus(E[s], E[t]))
                relaxed.append(Fraction(int(tight)))
    hard = shortest(rows, [Fraction(1)] * len(rows))
    return head, hard, None if head is None else shortest(rows, relaxed)
