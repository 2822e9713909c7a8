"""Ends and stations of gradient flows of diagonal networks, against the algorithm and a linear program."""

from itertools import combinations

import numpy as np
from scipy.integrate import quad
from scipy.optimize import linprog

from jaxattn.lab.books import at_least, cells, mean, share

NEAR, STATION = 0.01, 0.05
ALGORITHM = "Algorithm 1 stops at the solution of Xk = y with the smallest R(k)"
DYNAMICS = "Gradient flow from tiny starts passes the iterates of the algorithm and ends at its output"


def least_squares(X, y, free, signs):
    """Return the k on the columns `free` that minimises ‖Xk - y‖ with k_i signs_i ≥ 0; sign 0 is free."""
    best, k = np.inf, np.zeros(X.shape[1])
    for count in range(len(free) + 1):
        for own in map(list, combinations(free, count)):
            given = np.linalg.lstsq(X[:, own], y, rcond=None)[0] if own else np.zeros(0)
            rest = np.linalg.norm(X[:, own] @ given - y)
            if (signs[own] * given >= 0).all() and rest < best - 1e-12:
                best, k = rest, np.zeros(X.shape[1])
                k[own] = given
    return k


def stations(X, y, above, below):
    """Run Algorithm 1; return its iterates k^(0), ..., k^(p_max)."""
    k, s = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    found = [k]
    for _ in range(50):
        if np.linalg.norm(X @ k - y) < 1e-9 * np.linalg.norm(y):
            return found
        u = X.T @ (y - X @ k)
        with np.errstate(divide="ignore"):
            wait = np.where(u > 0, (above - s) / u, (below + s) / -u)
        wait = np.where((k == 0) & (u != 0), wait, np.inf)
        first = int(wait.argmin())
        s = s + wait[first] * u
        k = least_squares(X, y, [i for i in range(len(k)) if k[i] or i == first], np.sign(k))
        found.append(k)
    raise ValueError("the algorithm did not stop after 50 iterations")


def program(X, y, above, below):
    """Return the minimiser of Σ above k⁺ + below k⁻ subject to Xk = y, by linear programming."""
    solved = linprog(np.concatenate([above, below]), A_eq=np.hstack([X, -X]), b_eq=y, method="highs")
    return solved.x[: len(above)] - solved.x[len(above) :]


def thresholds(theta, scale):
    """Return t⁺ and t⁻ of every unknown, for two layers or for products of the entries of θ."""
    if "rise" in theta:
        return 1 / theta["rise"], 1 / theta["fall"]
    found = []
    for row in theta["a"] / scale:
        row = sorted(row, key=abs)
        smallest, squares = row[0], [x * x - row[0] ** 2 for x in row[1:]]

        def speed(x, squares=squares):
            return 1 / np.prod([np.sqrt(x * x + square) for square in squares])

        # The flow moves a_L, the entry of smallest modulus. The other factors have constant signs, which
        # decide the sign of k for large |a_L|.
        up, down = quad(speed, smallest, np.inf)[0], quad(speed, -np.inf, smallest)[0]
        found.append((up, down) if np.prod(np.sign(row[1:])) > 0 else (down, up))
    return tuple(np.array(found).T)


def vector(cell, name):
    """Return a vector metric at all rows, (S, k, entries)."""
    names = [x for x in cell.records["metric"].unique() if x.rpartition("_")[0] == name]
    return np.stack([cell.path(x) for x in names], axis=-1)


def outcomes(cell):
    """Return, per seed, distances from the program, of the algorithm, of the stations and of plain ℓ1."""
    X, y, k = vector(cell, "X"), vector(cell, "y"), vector(cell, "k")
    unknowns = k.shape[2]
    names = {x.split("_")[1] for x in cell.records["metric"].unique() if x.startswith("theta_")}
    theta = {name: vector(cell, f"theta_{name}") for name in names}
    scale, rows = np.exp(-cell["model.log_scale"]), []
    for seed in range(len(k)):
        own = {name: x[seed, 0] for name, x in theta.items()}
        if "rise" not in own:
            own["a"] = own["a"].reshape(unknowns, -1)
        A, b = X[seed, 0].reshape(-1, unknowns), y[seed, 0]
        above, below = thresholds(own, scale)
        best, path = program(A, b, above, below), stations(A, b, above, below)
        size = np.linalg.norm(best)
        plain = program(A, b, np.ones(unknowns), np.ones(unknowns))
        missed = [np.linalg.norm(k[seed] - station, axis=1).min() / size for station in path]
        rows.append(
            (
                np.linalg.norm(k[seed, -1] - best) / size,
                np.linalg.norm(path[-1] - best) / size,
                max(missed),
                np.linalg.norm(plain - best) / size,
            )
        )
    return np.array(rows).T


def check(results):
    """Compare the flows with the algorithm and the program."""
    found = {(cell["block"], cell["model.log_scale"]): outcomes(cell) for cell in cells(results["study"])}
    for (block, log_scale), (end, algorithm, station, plain) in found.items():
        name, limit = f"{block}, s = e^-{log_scale:g}", log_scale == 100
        id = f"{block.replace(' ', '-')}.{log_scale:g}"
        about = {"expected": at_least(0.75), "published": "all as s → 0"} if limit else {}
        text = f"{name}: flows that end within {NEAR:.0%} of the minimiser"
        yield share(f"{id}.end", text, end <= NEAR, claim=DYNAMICS, **about)
        yield mean(f"{id}.distance", f"{name}: distance from the minimiser / its norm", end, claim=DYNAMICS)
        text = f"{name}: flows that pass all iterates within {STATION:.0%}"
        yield share(f"{id}.stations", text, station <= STATION, claim=DYNAMICS, **about)
        if limit or log_scale == 4:
            text = f"{name}: instances in which the algorithm and SciPy agree within 1e-6"
            known = {"expected": at_least(0.75), "published": "all"}
            yield share(f"{id}.algorithm", text, algorithm <= 1e-6, claim=ALGORITHM, **known)
        if limit:
            text = "control: instances in which the unweighted ℓ1 minimiser is another point"
            yield share(f"{id}.plain", text, plain > NEAR, claim=DYNAMICS, basis="beyond")
    closer = found["three layers", 4.0][0] < found["three layers", 1.0][0]
    text = "three layers: flows that end closer to the minimiser from s = e^-4 than from s = e^-1"
    yield share("three-layers.closer", text, closer, claim=DYNAMICS, expected=at_least(0.75), basis="theory")
