"""Models and checks of the claims of 2026, against loops in NumPy, closed forms and exact code elsewhere."""

import importlib.util
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "sweeps" / "claims2026"

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.more]


@pytest.mark.parametrize("cloud", ["normal", "symmetric", "ellipse"])
def test_hardmax_attention_matches_a_loop(code, cloud):
    Tokens, hardmax = (code("token_dynamics.py", name) for name in ("Tokens", "hardmax"))
    data = code("token_dynamics.py", "none")(tokens=8)
    start = Tokens(cloud=cloud, metric="random").init(jax.random.key(3), data, dtype=jnp.float64)
    path = hardmax(start, None, points=7, horizon=20)
    x, B = np.asarray(start["x"]), np.asarray(start["B"])
    diameter = max(np.linalg.norm(a - b) for a in x for b in x)
    bound, ratios = 2 * np.linalg.eigvalsh(B)[-1] * diameter**2, [0.0]
    for t in range(20):
        aims = [min(x, key=lambda y, own=own: own @ B @ y) for own in x]
        x = np.array([own + 2 / (t + 2) * (y - own) for own, y in zip(x, aims, strict=True)])
        ratios.append(max(own @ B @ own for own in x) / 2 * (t + 1) / bound)
    np.testing.assert_allclose(path.params["x"][-1], x, atol=1e-12)
    np.testing.assert_allclose(path.metrics["worst_ratio"][-1], max(ratios))


def test_tokens_have_0_in_their_hull_and_vertices_in_their_own_cells(code):
    Tokens, contains, aims = (code("token_dynamics.py", x) for x in ("Tokens", "contains_origin", "aims"))
    data = code("token_dynamics.py", "none")(tokens=10)
    for seed in range(20):
        for cloud in ("normal", "symmetric"):
            model = Tokens(cloud=cloud)
            assert contains(model.init(jax.random.key(seed), data, dtype=jnp.float64)["x"])
        found = Tokens(cloud="ellipse", metric="random").init(jax.random.key(seed), data, dtype=jnp.float64)
        aim, _ = aims(found["x"], found["B"], True)
        np.testing.assert_array_equal(aim[:5], np.arange(5))
    assert not contains(jnp.array([[1.0, 0.0], [1.0, 1.0], [2.0, -1.0]]))


def test_the_exact_trajectory_of_two_tokens_is_the_one_of_the_note(code):
    worst = code("frank_wolfe/check.py", "worst")
    ratio, first = worst([(3,), (-1,)], 600)
    assert first == 575
    # The left end 1/3 never moves; at t = 599 the bound is 32/600.
    assert Fraction(600, 18 * 32) <= ratio < Fraction(11, 10)


def test_the_population_risk_is_the_mean_over_samples_and_its_flow_that_of_the_paper(code):
    population, Linear, risk = (
        code("linear_limit/linear_limit.py", x) for x in ("population", "Linear", "risk")
    )
    data = population(jax.random.key(0), dim=3, spread=10.0, scale=1.0)
    data = jax.tree.map(lambda x: x.astype(float), data)
    params = Linear(alpha=0.5, scale=1.0).init(jax.random.key(1), data, dtype=jnp.float64)
    task = ja.dynamics.Task(Linear(alpha=0.5, scale=1.0), ja.losses.SquaredError(), data)
    S, A, b = (np.asarray(x) for x in (data.covariance, params["A"], params["b"]))
    slopes = jax.grad(risk)(params, task)
    np.testing.assert_allclose(-slopes["A"], b * S @ S - b**2 * S @ S @ A @ S, atol=1e-12)
    wanted = np.trace(A.T @ S @ S) - b * np.trace(A.T @ S @ S @ A @ S)
    np.testing.assert_allclose(-slopes["b"], wanted, atol=1e-12)
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(3), S, 400_000)
    w = rng.normal(size=(400_000, 3))
    # On an infinite prompt for the task w, the layer predicts b (Σ w)ᵀ A x for the query x.
    errors = ((b * (w @ S) * (x @ A.T)).sum(axis=1) - (w * x).sum(axis=1)) ** 2
    assert float(risk(params, task)) == pytest.approx(errors.mean() / 2, rel=0.02)


def test_attention_with_rotary_positions_matches_a_loop(code):
    Heads, regression = (code("attention_laws/attention_laws.py", x) for x in ("Heads", "regression"))
    data = regression(jax.random.key(0), dim=4, length=3, sequences=2)
    params = Heads(rotary=True).init(jax.random.key(1), data, dtype=jnp.float64)
    Q, K, V, O = (np.asarray(params[x]) for x in "QKVO")

    def turned(vector, position):
        pairs = (vector[0::2] + 1j * vector[1::2]) * np.exp(1j * position / 2.0 ** np.arange(2))
        return np.stack([pairs.real, pairs.imag], axis=1).ravel()

    for X, z, found in zip(data.X, data.z, Heads(rotary=True).outputs(params, data), strict=True):
        wanted = np.zeros(4)
        for h in range(2):
            query = turned(Q[h].T @ z, 3)
            scores = np.array([turned(K[h].T @ x, t) @ query for t, x in enumerate(np.asarray(X))])
            weights = np.exp(scores - scores.max())
            wanted += O[h] @ V[h].T @ (weights / weights.sum() @ np.asarray(X))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_the_exact_derivative_of_the_gates_is_that_of_the_model(code, gate):
    Experts, exact = code("expert_gates/expert_gates.py", "Experts"), code("expert_gates/check.py", "exact")
    data = ja.data.Vectors(targets=jnp.zeros((1, 1)), X=jnp.ones((1, 1, 1)))
    model = Experts(gate=gate, experts=2)
    W = jnp.log(jnp.array([[1.0], [3.0]]))  # sigmoids 1/2 and 3/4

    def loss(W):
        params = {"W": W, "A": jnp.array([[[0.0]], [[1.0]]])}
        return (model.outputs(params, data) ** 2).sum() / 2

    value = exact(("1/2", "3/4"))[gate == "softmax"]
    assert float(-jax.grad(loss)(W).sum()) == pytest.approx(float(value), abs=1e-12)
    assert value == (Fraction(9, 250) if gate == "sigmoid" else 0)


def test_iterates_end_where_the_exact_algorithm_of_the_search_ends(code):
    stations, program = (code("diagonal_network/check.py", x) for x in ("stations", "program"))
    algorithm = ImportPaths(ROOT / "sweeps" / "refute").load("diagonal_linear.py:algorithm")
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(40):
        X, y = rng.integers(-9, 10, (2, 4)), rng.integers(1, 9, 2)
        above, below = rng.integers(1, 30, (2, 4))
        exact = algorithm([fractions(row) for row in X], *map(fractions, (y, above, below)))
        if isinstance(exact, str):
            continue
        given = [z.astype(float) for z in (X, y, above, below)]
        with np.errstate(invalid="ignore"):  # u_i = 0 at the start
            found = stations(*given)[-1]
        np.testing.assert_allclose(found, [float(k) for k in exact], atol=1e-9)
        costs = [np.where(k > 0, above * k, -below * k).sum() for k in (found, program(*given))]
        assert costs[0] == pytest.approx(costs[1])
        compared += 1
    assert compared > 20


def fractions(numbers):
    """Convert integers to fractions."""
    return [Fraction(int(x)) for x in numbers]


def test_thresholds_of_three_layers_are_arctangents(code):
    thresholds = code("diagonal_network/check.py", "thresholds")
    above, below = thresholds({"a": np.array([[0.5, 1.0, 1.0 + 1e-9], [0.5, -1.0, 1.0 + 1e-9]])}, 1.0)
    mu = np.sqrt(1.0 - 0.25)
    short, long = ((np.pi / 2 + sign * np.arctan(0.5 / mu)) / mu for sign in (-1, 1))
    np.testing.assert_allclose(above, [short, long], rtol=1e-6)
    np.testing.assert_allclose(below, [long, short], rtol=1e-6)


def test_independent_checks_agree():
    spec = importlib.util.spec_from_file_location("independent", ROOT / "benchmarks/independent_claims.py")
    independent = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(independent)
    assert independent.frank_wolfe(3, -1, 600) == 575
    assert independent.frank_wolfe(4, -1, 300) == 224
    assert independent.frank_wolfe(3, -1, 500) is None
    sigmoid, softmax = independent.gate_derivatives()
    assert float(sigmoid) == pytest.approx(-9 / 250, abs=1e-15)
    assert abs(float(softmax)) < 1e-15


def test_attention_on_a_prompt_matches_a_loop_and_its_limit_a_quadrature(code):
    attention, limit = (code("token_samples/token_samples.py", name) for name in ("attention", "limit"))
    X = np.random.default_rng(0).normal(size=(3, 50, 2))
    tilts = np.array([[0.5, -1.0], [0.0, 0.0], [2.0, 1.0]])
    found = attention(jnp.asarray(X), jnp.asarray(tilts))
    for i, tilt in enumerate(tilts):
        for n, prompt in enumerate(X):
            weights = np.exp(prompt @ tilt)
            np.testing.assert_allclose(found[i, n], weights @ prompt / weights.sum(), rtol=1e-12)
    z = np.array([-3.0, -0.5, 0.0, 1.0, 8.0])
    for law, density, ends in (("normal", lambda x: np.exp(-(x**2) / 2), 40), ("uniform", np.ones_like, 1)):
        x = np.linspace(-ends, ends, 400_001)
        weights = density(x) * np.exp(np.outer(z, x) - np.abs(z)[:, None] * ends)
        weights[:, [0, -1]] /= 2  # trapezoid rule
        wanted = weights @ x / weights.sum(axis=1)
        np.testing.assert_allclose(limit(law, jnp.asarray(z)[:, None])[:, 0], wanted, rtol=1e-6, atol=1e-9)
    # In the plane, the limit is V m + V Γ KᵀQ z; the moment generating function of N(m, Γ) is differentiated.
    m, root, value, strength = (
        np.asarray(code("token_samples/token_samples.py", x)) for x in ("MEAN", "ROOT", "VALUE", "KEY_QUERY")
    )
    queries = np.array([[1.0, 0.0], [-0.5, 2.0]])
    log_mgf = jax.grad(lambda s: m @ s + 0.5 * s @ root @ root.T @ s)
    wanted = [value @ np.asarray(log_mgf(jnp.asarray(strength @ query))) for query in queries]
    np.testing.assert_allclose(limit("plane", jnp.asarray(queries)), wanted, rtol=1e-6)
