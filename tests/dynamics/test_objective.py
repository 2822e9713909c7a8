"""Objectives and fresh examples in phases: against closed forms, SciPy, and a loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import jaxattn as ja
from jaxattn.dynamics import Descent, GradientFlow, Task, gradient_flow

pytestmark = pytest.mark.usefixtures("x64")

COVARIANCE = np.array([[2.0, 0.5], [0.5, 1.0]])
TEACHER = np.array([1.0, -2.0])


class Linear(ja.Model):
    """f(x) = w·x."""

    def init(self, key, like, *, dtype):
        return {"w": jnp.zeros(like.X.shape[-1], dtype)}

    def outputs(self, params, data):
        return data.X[:, 0] @ params["w"]


def normal(key, examples):
    """Examples with covariance COVARIANCE and targets of the teacher."""
    X = jax.random.normal(key, (examples, 1, 2)) @ jnp.linalg.cholesky(jnp.asarray(COVARIANCE)).T
    return ja.data.Vectors(targets=X[:, 0] @ jnp.asarray(TEACHER), X=X)


def risk(params, task):
    """The expected loss in closed form, ½ (w - w*)ᵀ Σ (w - w*)."""
    away = params["w"] - TEACHER
    return away @ jnp.asarray(COVARIANCE) @ away / 2


def quadrature(params, task):
    """The expected loss by Gauss-Hermite quadrature with 3 x 3 nodes, exact for polynomials of degree 5."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    x, y = np.meshgrid(nodes, nodes)
    X = np.stack([x.ravel(), y.ravel()], axis=1) @ np.linalg.cholesky(COVARIANCE).T
    data = ja.data.Vectors(targets=jnp.asarray(X @ TEACHER), X=jnp.asarray(X[:, None]))
    each = task.loss(task.model.outputs(params, data), data.targets)
    return each @ jnp.asarray(np.outer(weights, weights).ravel() / weights.sum() ** 2)


def task():
    model = Linear()
    data = normal(jax.random.key(0), 3)
    return Task(model, ja.losses.SquaredError(), data, fresh=normal), {"w": jnp.zeros(2)}


@pytest.mark.parametrize("objective", [risk, quadrature])
def test_the_flow_of_an_expected_loss_is_the_matrix_exponential(objective):
    given, start = task()
    path = gradient_flow(start, given, train=("w",), until_time=5.0, objective=objective, points=9)
    for time, w in zip(path.metrics["time"], path.params["w"], strict=True):
        np.testing.assert_allclose(
            w, TEACHER - expm(-COVARIANCE * float(time)) @ TEACHER, rtol=1e-6, atol=1e-9
        )
    away = path.params["w"] - TEACHER
    losses = np.einsum("ti,ij,tj->t", away, COVARIANCE, away) / 2
    np.testing.assert_allclose(path.metrics["log_loss"], np.log(losses), rtol=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "polyak"])
def test_descent_on_an_objective_matches_a_loop(optimizer):
    given, start = task()
    phase = Descent(name="sgd", train=("w",), optimizer=optimizer, step_size=0.3, steps=7, objective=risk)
    found = ja.dynamics.run(phase, given, start).params["w"]
    w = np.zeros(2)
    for _ in range(7):
        slope = COVARIANCE @ (w - TEACHER)
        loss = (w - TEACHER) @ slope / 2
        w = w - (0.3 if optimizer == "sgd" else min(0.3, loss / (slope @ slope))) * slope
    np.testing.assert_allclose(found, w, rtol=1e-12)


def test_a_flow_on_fresh_examples_matches_scipy_interval_by_interval():
    given, start = task()
    key = jax.random.key(7)
    path = gradient_flow(start, given, train=("w",), until_time=3.0, fresh=5, points=5, key=key)
    times, w = np.asarray(path.metrics["time"]), np.zeros(2)
    for k in range(4):
        data = normal(jax.random.fold_in(key, k), 5)
        X, y = np.asarray(data.X[:, 0]), np.asarray(data.targets)
        loss = np.mean((X @ w - y) ** 2) / 2
        assert float(path.metrics["log_loss"][k]) == pytest.approx(np.log(loss), rel=1e-6)
        done = solve_ivp(
            lambda t, w, X=X, y=y: -X.T @ (X @ w - y) / 5, times[k : k + 2], w, rtol=1e-10, atol=1e-12
        )
        w = done.y[:, -1]
        np.testing.assert_allclose(path.params["w"][k + 1], w, rtol=1e-5)


def noisy(key, *, sequences: int, dim: int = 20):
    """Targets of the teacher (1, 0, ..., 0) with noise of variance 1."""
    first, second = jax.random.split(key)
    X = jax.random.normal(first, (sequences, 1, dim))
    return ja.data.Vectors(targets=X[:, 0, 0] + jax.random.normal(second, (sequences,)), X=X)


@pytest.mark.more
def test_the_test_loss_rises_on_a_training_set_but_not_on_fresh_examples(tmp_path):
    flow = {"kind": "gradient_flow", "name": "flow", "train": ["w"], "until_time": 100.0, "points": 24}
    study = ja.Study(
        name="fresh",
        seeds=2,
        model=Linear(),
        loss="squared_error",
        data={"kind": noisy, "sequences": 30, "test_sequences": 2000},
        phases=[flow],
        blocks={"fixed": {}, "fresh": {"phases": {"flow": {"fresh": 4000}}}},
    )
    records = study.run(tmp_path, quiet=True).records.query("metric == 'test_loss'")
    for (cell, _), own in records.groupby(["cell", "seed"]):
        test_loss = own.sort_values("step")["value"].to_numpy()
        rises = test_loss[-1] / test_loss.min() - 1
        assert rises > 0.3 if cell == 0 else rises < 0.02


def test_seeds_sample_different_examples_and_the_same_ones_again():
    given, start = task()
    flow = GradientFlow(name="flow", train=("w",), until_time=1.0, fresh=2, points=4)
    assert flow.is_random
    assert not GradientFlow(name="flow", train=("w",), until_time=1.0).is_random
    first, again, other = (
        ja.dynamics.run(flow, given, start, key=jax.random.key(seed)).path.params["w"][-1]
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


@pytest.mark.parametrize("kind", [Descent, GradientFlow])
def test_settings_that_do_not_fit_an_objective_are_refused(kind):
    extra = {"optimizer": "sgd", "step_size": 0.1, "steps": 1} if kind is Descent else {"until_time": 1.0}
    given, start = task()
    for wrong, message in (({"objective": "risk"}, "function"), ({"objective": risk, "fresh": 3}, "fresh")):
        with pytest.raises(ja.InputError, match=message):
            ja.dynamics.run(kind(name="a", train=("w",), **extra, **wrong), given, start, jax.random.key(0))
    vector = kind(name="a", train=("w",), **extra, objective=lambda params, task: params["w"])
    with pytest.raises(ja.InputError, match="scalar"):
        ja.dynamics.run(vector, given, start)
    assert not kind(name="a", train=("w",), **extra, objective=risk).rotation_invariant
    assert kind(name="a", train=("w",), **extra).rotation_invariant


def test_fresh_examples_require_a_source_and_a_key():
    given, start = task()
    fixed = given._replace(fresh=None)
    with pytest.raises(ja.InputError, match="fresh"):
        gradient_flow(start, fixed, train=("w",), until_time=1.0, fresh=2, key=jax.random.key(0))
    with pytest.raises(ja.InputError, match="key"):
        gradient_flow(start, given, train=("w",), until_time=1.0, fresh=2)
