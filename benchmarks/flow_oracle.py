"""Compare exact flows of p with backward Euler steps in log time, in 3,000-bit arithmetic.

    python benchmarks/flow_oracle.py --seeds 20                  # 20 problems of each of 21 kinds
    python benchmarks/flow_oracle.py --seeds 20 --kinds lattice  # only kinds with "lattice" in their name
    python benchmarks/flow_oracle.py --seeds 60 --kinds tie      # 300 near ties

The problems are small and adversarial: keys and values on a lattice, contradictory labels, values for which
first-order forces cancel, repeated tokens, three classes, scales from 1e-2 to 1e2, and two tokens whose keys,
values or both differ by 1e-15 to 1e-2. The reference shares no code with the flow. It uses a plain softmax,
Newton's method, step halving and extrapolation. With gmpy2, which mpmath uses if it is installed, the
reference is several times faster. The command fails if a path and the reference end at different points, or
if the path comes to rest while the reference continues.
"""

import argparse
import collections
import sys
import time

import mpmath
import numpy as np
from mpmath import mp

import jaxattn as ja

SEQUENCES, LENGTH, DIM = 6, 4, 3
KINDS = (
    "lattice vlat contra", "lattice vlat contra zero", "lattice vlat contra zero rep", "contra",
    "contra zero", "contra zero near vlat", "lattice vlat", "lattice vlat rep", "k3 contra",
    "k3 lattice vlat contra",
    "k3 lattice vlat contra zero", "k3 scale", "scale", "scale contra zero", "k3 scale contra zero",
    "contra vlat near rep zero",
    "tie keys", "tie values", "tie keys values", "contra tie keys values", "k3 tie keys values",
)  # fmt: skip
PRECISION, FAR = 3000, 100.0


def problem(kind, seed):
    """Sample the keys, values, token sequences, labels, number of classes and initial p for one problem."""
    rng, words = np.random.default_rng([seed, KINDS.index(kind)]), kind.split()
    classes, tokens = 3 if "k3" in words else 2, int(rng.integers(4, 8))
    shape = (tokens, classes) if classes > 2 else (tokens,)
    column = (tokens, 1) if classes > 2 else (tokens,)
    keys = rng.normal(size=(tokens, DIM))
    if "lattice" in words:
        keys = rng.integers(-2, 3, (tokens, DIM)).astype(float)
    values = rng.integers(-2, 3, shape) / 2 if "vlat" in words else 1.5 * rng.normal(size=shape)
    if "scale" in words:
        keys = keys * 10 ** rng.uniform(-2, 2, (tokens, 1))
        values = values * 10 ** rng.uniform(-2, 1, column)
    if "zero" in words:
        values[0] = 0
    if "tie" in words:
        for x in [x for x, name in ((keys, "keys"), (values, "values")) if name in words]:
            x[1] = x[0] + 10.0 ** -rng.integers(2, 16) * rng.normal(size=x[0].shape)
    sequences, labels = [], []
    while len(sequences) < SEQUENCES and (not sequences or rng.random() < 0.85):
        size = int(rng.integers(2, LENGTH + 1))
        own = sorted(rng.choice(tokens, size, replace="rep" in words).tolist())
        if "zero" in words and rng.random() < 0.6:
            own = sorted([0, *own[1:]])
        if "tie" in words and rng.random() < 0.6:
            own = sorted({0, 1, *own})[:LENGTH]
        if "contra" in words and rng.random() < 0.6 and len(sequences) + classes <= SEQUENCES:
            near = sorted([*own, int(rng.integers(tokens))]) if size < LENGTH else own[:-1]
            sequences += [own, near] if "near" in words and classes == 2 else [own] * classes
            labels += range(classes)
        else:
            sequences.append(own)
            labels.append(int(rng.integers(classes)))
    start = 0.3 * rng.normal(size=DIM) / max(np.abs(keys).max(), 1e-9) * (rng.random() < 0.7)
    return keys, values.astype(float), sequences, labels, classes, start


def scores_of(keys, values, sequences, labels, classes):
    """Return a problem as `Scores` of fixed shape, padded with one-token sequences that exert no force."""
    X, mask = np.zeros((SEQUENCES, LENGTH, DIM)), np.zeros((SEQUENCES, LENGTH), bool)
    own, y = np.zeros((SEQUENCES, LENGTH, *values.shape[1:])), np.zeros(SEQUENCES, int)
    mask[:, 0] = True
    for k, (tokens, label) in enumerate(zip(sequences, labels, strict=True)):
        X[k, : len(tokens)], own[k, : len(tokens)] = keys[tokens], values[tokens]
        mask[k, : len(tokens)], y[k] = True, label
    return ja.theory.scores.from_vectors(
        X, 2 * y - 1 if classes == 2 else y, values=own, mask=mask, num_classes=classes
    )


class Reference:
    """Force on p and its derivative, computed by plain formulas in `PRECISION`-bit arithmetic."""

    def __init__(self, keys, values, sequences, labels, classes):
        outputs = np.stack([0 * values, values], axis=1) if classes == 2 else values
        self.parts = [
            (
                mpmath.matrix(keys[tokens].tolist()),
                [[mpmath.mpf(float(x)) for x in row] for row in outputs[tokens]],
                label,
            )
            for tokens, label in zip(sequences, labels, strict=True)
            if len(set(tokens)) > 1
        ]

    def force(self, p):
        """Compute -n ∂L/∂p and its Jacobian."""
        total, jacobian = mpmath.zeros(DIM, 1), mpmath.zeros(DIM)
        for keys, values, label in self.parts:
            a = keys * p
            top = max(a)
            q = [mpmath.exp(x - top) for x in a]
            norm = mpmath.fsum(q)
            q = [x / norm for x in q]
            rows = range(len(q))
            f = [mpmath.fsum(q[i] * values[i][k] for i in rows) for k in range(len(values[0]))]
            pi = [mpmath.exp(x - max(f)) for x in f]
            norm = mpmath.fsum(pi)
            pi = [x / norm for x in pi]
            r = [-x for x in pi]
            r[label] = mpmath.fsum(x for k, x in enumerate(pi) if k != label)
            c = [[q[i] * (x - y) for x, y in zip(values[i], f, strict=True)] for i in rows]
            g = [mpmath.fdot(r, row) for row in c]
            mean = [mpmath.fdot(pi, row) for row in c]
            hessian = mpmath.zeros(len(q))
            for i in rows:
                for j in rows:
                    square = mpmath.fsum(w * x * y for w, x, y in zip(pi, c[i], c[j], strict=True))
                    hessian[i, j] = mean[i] * mean[j] - square - g[i] * q[j] - q[i] * g[j] + (i == j) * g[i]
            total += keys.T * mpmath.matrix(g)
            jacobian += keys.T * hessian * keys
        return total, jacobian

    def step(self, p, log_time, h):
        """Return p after a backward Euler step of dp/dτ = e^τ F(p), or None if Newton's method fails."""
        scale, x, last = mpmath.exp(log_time + h) * h, p, None
        for iteration in range(14):
            force, jacobian = self.force(x)
            try:
                move = mpmath.lu_solve(mpmath.eye(DIM) - scale * jacobian, p + scale * force - x)
            except ZeroDivisionError:
                return None
            size = mpmath.norm(move)
            if size > 1e3 * (1 + mpmath.norm(x)):
                return None
            x = x + move
            if size < 1e-12 * (mpmath.norm(x) + 1e-6):
                return x
            if iteration > 4 and size > last:
                return None
            last = size
        return None

    def until(self, norm, p, unit, rtol=1e-3, seconds=120.0):
        """Return the first p along the flow with ‖p‖ ≥ `norm`.

        Returns None if the time limit is reached first, or if steps become too small.
        """
        p, log_time, h = mpmath.matrix(p.tolist()), mpmath.mpf(-20), 0.1
        began = time.perf_counter()
        while mpmath.norm(p) < norm:
            if time.perf_counter() - began > seconds or h < 1e-10 or log_time > 3000:
                return None
            whole, half = self.step(p, log_time, h), self.step(p, log_time, h / 2)
            halves = None if half is None else self.step(half, log_time + h / 2, h / 2)
            if whole is None or halves is None:
                h /= 3
                continue
            error = float(mpmath.norm(whole - halves)) / (rtol * (float(mpmath.norm(halves)) + unit))
            if error <= 1:
                p, log_time = 2 * halves - whole, log_time + h
            h *= min(3.0, max(0.2, 0.85 * error**-0.5)) if error > 0 else 3.0
        return np.array([float(x) for x in p])


def compare(kind, seed):
    """Compare the exact flow with the reference on one problem, and return a list of outcomes as strings."""
    *made, start = problem(kind, seed)
    scores, unit = scores_of(*made), 1 / max(np.abs(made[0]).max(), 1e-9)
    far = ja.dynamics.exact_flow(scores, start, until_norm=1e6 * unit)
    outcome = [f"far end {far.stop}"]
    limit = None
    if far.stop == "norm":
        limit = ja.theory.certify_limit(scores, far.p[-1], far.selection)
        outcome.append("certified" if limit.holds else "refused: " + limit.reason.rpartition(", ")[0])
    expected = Reference(*made).until(FAR * unit, start, unit)
    if expected is None:
        return [*outcome, "no reference"]
    path = ja.dynamics.exact_flow(scores, start, until_norm=float(np.linalg.norm(expected)))
    if path.stop in ("balanced", "stationary"):
        return [*outcome, f"WRONG {kind!r} seed {seed}: {path.stop}, but the reference continues"]
    if path.stop != "norm":
        return [*outcome, f"stopped before the reference: {path.stop}"]
    away = float(ja.theory.one_minus_cosine(path.p[-1], expected))
    outcome.append("as the reference" if away < 1e-3 else f"WRONG {kind!r} seed {seed}: 1 - cos {away:.1e}")
    return outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="number of problems of each kind")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--kinds", default="", help="run only kinds whose name contains this word")
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if arguments.kinds in kind]
    if not kinds or arguments.seeds < 1:
        parser.error(f"no problems; use --seeds N with N ≥ 1, and a word of one of {', '.join(KINDS)}")
    mp.prec = PRECISION
    total = collections.Counter()
    for kind in kinds:
        found = collections.Counter()
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            found.update(compare(kind, seed))
        print(f"{kind}: {dict(found)}", flush=True)
        total += found
    print(f"all: {dict(total)}")
    return int(any(outcome.startswith("WRONG") for outcome in total))


if __name__ == "__main__":
    sys.exit(main())
