"""Lemma 2.1 and Theorem 5.1 of arXiv 2512.11784v1: a quadrature, and the ends of population flows."""

import numpy as np

from jaxattn.lab.books import at_least, at_most, cells, mean

LEMMA = "For tokens with the law N(m, Γ), softmax attention is V m + V Γ KᵀQ z (Lemma 2.1)"
THEOREM = "The flow on infinite prompts ends with zero risk, at b = tr(Σ⁻²)^¼ and A = Σ⁻¹/b (Theorem 5.1)"
NODES, INSTANCES = 80, 20


def attention_error(seed):
    """Return ‖E[X e^(a·X)]/E[e^(a·X)] - m - Γa‖ / ‖Γa‖ by quadrature, for random m, Γ and a in the plane."""
    rng = np.random.default_rng(seed)
    root, m, a = rng.normal(size=(2, 2)), rng.normal(size=2), rng.normal(size=2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel()
    X = m + grid @ root.T
    scores = X @ a
    softmax = mass * np.exp(scores - scores.max())
    found = softmax @ X / softmax.sum()
    covariance = root @ root.T
    return np.linalg.norm(found - m - covariance @ a) / np.linalg.norm(covariance @ a)


def check(results):
    """Compare quadratures with the lemma, and the ends of the flows with the theorem."""
    errors = [attention_error(seed) for seed in range(INSTANCES)]
    text = "error of the formula against a quadrature"
    yield mean("lemma", text, errors, expected=at_most(1e-6), published="0", claim=LEMMA, unit="instance")
    for cell in cells(results["study"]):
        beyond = cell.name.startswith(("A = 0", "α"))
        basis = {"basis": "beyond"} if beyond else {}
        for metric, words in (
            ("distance_A", "‖A - A*‖ / ‖A*‖"),
            ("distance_b", "|b - b*| / b*"),
            ("risk", "risk / that of A = 0"),
        ):
            if cell.name == "A = 0":
                expected = at_least(0.1) if metric == "distance_A" else None
            else:
                expected = at_most(1e-5)
            text = f"{cell.name}: {words} at the end"
            about = {"expected": expected, "published": "0"} | basis
            yield mean(f"{cell.id}.{metric}", text, cell.last(metric), claim=THEOREM, **about)
        drift = np.abs(cell.path("balance") - cell.path("balance")[:, :1]).max(axis=1)
        text = f"{cell.name}: drift of (‖A‖² - b²) / b*²"
        yield mean(f"{cell.id}.balance", text, drift, expected=at_most(1e-5), claim=THEOREM, basis="beyond")
