"""Gradient flow of any model, against SciPy's Radau, the exact flow and descent with small steps."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.core import pytrees
from jaxattn.data import Splits
from jaxattn.dynamics import GradientFlow, Stop, gradient_flow

pytestmark = pytest.mark.usefixtures("x64")


class Points(ja.Dataset):
    X: jax.Array


class Mlp(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(jnp.tanh(linen.Dense(3)(x)))


def one_layer(classes):
    rng = np.random.default_rng(0)
    tokens, drawn = rng.integers(0, 12, (30, 5)), np.arange(30) % classes
    labels = 2 * drawn - 1 if classes == 2 else drawn
    corpus = ja.data.from_sequences(tokens.tolist(), labels.tolist(), vocab_size=12, num_classes=classes)
    model = ja.models.OneLayer(dim=6)
    return corpus, model, ja.losses.classification, ("p", "v")


def regression():
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(20, 4)))
    data = Points(targets=jnp.sin(X[:, 0]), X=X)
    return data, ja.models.from_linen(Mlp()), ja.losses.squared_error, ("Dense_0", "Dense_1.kernel")


PROBLEMS = {"two classes": lambda: one_layer(2), "three classes": lambda: one_layer(3), "MLP": regression}


def problem(name):
    data, model, loss, train = PROBLEMS[name]()
    params = model.init(jax.random.key(1), data, dtype=jnp.float64)
    return params, Task(model, loss, Splits(data)), train


def radau(params, task, train, times):
    """The same flow in t itself, by SciPy with the Jacobian from finite differences."""
    start, unravel = ravel_pytree(pytrees.selected(params, train))
    data = task.data.train

    @jax.jit
    def gradient(theta):
        def loss(theta):
            outputs = task.model.outputs(pytrees.replace(params, **unravel(theta)), data)
            return task.loss(outputs, data.targets).mean()

        return jax.grad(loss)(theta)

    done = solve_ivp(
        lambda t, theta: -np.asarray(gradient(jnp.asarray(theta))),
        (0, times[-1]),
        np.asarray(start),
        method="Radau",
        t_eval=times,
        rtol=1e-9,
        atol=1e-11,
    )
    return done.y.T


def flat(path, row):
    return np.asarray(ravel_pytree({name: x[row] for name, x in path.params.items()})[0])


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        pytest.param(name, solver, marks=[pytest.mark.more] * (k > 0))
        for k, (name, solver) in enumerate(product(PROBLEMS, ["explicit", "implicit"]))
    ],
)
def test_paths_match_radau(name, solver):
    params, task, train = problem(name)
    flow = jax.jit(lambda params: gradient_flow(params, task, train=train, until_time=300.0, solver=solver))
    path = flow(params)
    assert int(path.status) == Stop.TIME
    times = np.asarray(path.metrics["time"])
    np.testing.assert_allclose(times, 301.0 ** (np.arange(64) / 63) - 1, rtol=1e-9, atol=1e-12)
    wanted = radau(params, task, train, times)
    for row in range(0, 64, 7):
        assert np.linalg.norm(flat(path, row) - wanted[row]) <= 1e-6 * np.linalg.norm(wanted[row])


@pytest.mark.more
def test_path_of_p_matches_the_exact_flow():
    params, task, _ = problem("two classes")
    path = gradient_flow(params, task, train=("p",), until_time=1e5)
    scores = ja.theory.scores.one_layer(params, task.data.train)
    end = float(np.linalg.norm(path.params["p"][-1]))
    exact = ja.dynamics.exact_flow(scores, params.p, until_norm=end, rtol=1e-9)
    p, q = np.asarray(path.params["p"][-1]), np.asarray(exact.p[-1])
    assert ja.theory.one_minus_cosine(p, q) < 1e-10
    assert abs(float(path.metrics["log_time"][-1] - exact.log_time[-1])) < 1e-4


@pytest.mark.more
def test_descent_with_small_steps_reaches_the_same_point():
    params, task, train = problem("MLP")
    path = gradient_flow(params, task, train=train, until_time=2.0)
    errors = []
    for steps in (200, 400):
        sgd = ja.dynamics.Descent(
            name="sgd", train=train, optimizer="sgd", step_size=2.0 / steps, steps=steps
        )
        moved = ja.dynamics.run(sgd, task, params).params
        here = ravel_pytree(pytrees.selected(moved, train))[0]
        errors.append(float(jnp.linalg.norm(here - flat(path, -1))))
    # Euler's method is of first order.
    assert errors[1] < 2e-3
    np.testing.assert_allclose(errors[0] / errors[1], 2, rtol=0.05)


@pytest.mark.more
def test_path_ends_at_the_requested_loss_or_norm():
    params, task, train = problem("two classes")
    whole = gradient_flow(params, task, train=train, until_time=1e3)
    log_loss, norm = whole.metrics["log_loss"], whole.metrics["trained_norm"]
    path = gradient_flow(params, task, train=train, until_time=1e3, until_log_loss=float(log_loss[40]))
    assert int(path.status) == Stop.LOSS
    assert 40 <= int(path.reached) <= 42
    np.testing.assert_allclose(path.metrics["log_loss"][-1], log_loss[40], rtol=1e-9)
    np.testing.assert_allclose(path.metrics["time"][-1], whole.metrics["time"][40], rtol=1e-6)
    np.testing.assert_array_equal(path.params["p"][int(path.reached) :] - path.params["p"][-1], 0)
    np.testing.assert_allclose(path.params["p"][:40], whole.params["p"][:40], rtol=1e-6)
    assert norm[-1] > norm[0]
    path = gradient_flow(params, task, train=train, until_time=1e3, until_norm=float(norm[50]))
    assert int(path.status) == Stop.NORM
    np.testing.assert_allclose(path.metrics["trained_norm"][-1], norm[50], rtol=1e-9)
    np.testing.assert_allclose(path.metrics["time"][-1], whole.metrics["time"][50], rtol=1e-6)


@pytest.mark.parametrize("key", ["until_norm", "until_log_loss"])
@pytest.mark.more
def test_path_that_starts_beyond_its_target_stays_at_the_start(key):
    params, task, train = problem("two classes")
    start = gradient_flow(params, task, train=train, until_time=1.0, points=2)
    target = {
        "until_norm": 0.5 * start.metrics["trained_norm"][0],
        "until_log_loss": start.metrics["log_loss"][0] + 1,
    }
    path = gradient_flow(params, task, train=train, until_time=1e3, **{key: float(target[key])})
    assert int(path.status) == {"until_norm": Stop.NORM, "until_log_loss": Stop.LOSS}[key]
    assert int(path.reached) == 0
    np.testing.assert_array_equal(path.metrics["time"], 0)
    np.testing.assert_array_equal(path.params["p"] - params.p, 0)


@pytest.mark.more
def test_path_that_is_too_stiff_spends_its_steps_and_the_phase_names_a_remedy():
    params, task, train = problem("MLP")
    path = gradient_flow(params, task, train=train, until_time=1e9, max_steps=50)
    assert path.stop == "step_budget"
    assert int(path.metrics["solver_steps"][-1]) == 50
    phase = GradientFlow(name="g", train=train, until_time=1e9, max_steps=50)
    assert int(phase.at(params, path, path.reached).failed_at) == int(path.reached)
    assert "use exact_flow" in phase.failure
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    path = gradient_flow(broken, task, train=train, until_time=1e9, max_steps=50)
    assert path.stop == "failed"
    assert "NaN" in path.reason
    with pytest.raises(ja.InputError, match="until_time: must be finite, got inf"):
        gradient_flow(params, task, train=train, until_time=np.inf)


@pytest.mark.more
def test_float32_parameters_give_the_float64_path():
    params, task, train = problem("two classes")
    single = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    same = jax.tree.map(lambda x: x.astype(jnp.float64), single)
    paths = [gradient_flow(each, task, train=train, until_time=100.0, points=4) for each in (single, same)]
    assert paths[0].params["p"].dtype == jnp.float64
    np.testing.assert_array_equal(paths[0].params["p"], paths[1].params["p"])


@pytest.mark.more
def test_float32_session_computes_the_float64_path():
    params, task, train = problem("two classes")
    asked = {"train": train, "until_time": 10.0, "points": 3}
    double = gradient_flow(params, task, **asked)
    with jax.enable_x64(False):
        single = gradient_flow(params, task, **asked)
    assert single.params["p"].dtype == np.float64
    np.testing.assert_array_equal(single.params["p"], double.params["p"])
