"""The exact flow as a phase: rows of its path are steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.data.splits import Splits, token_statistics
from jaxattn.dynamics import ExactFlow, FullFlow, JointFlow, exact_flow, full_flow, joint_flow
from jaxattn.dynamics.flows import stiff, ties


@pytest.fixture
def task(ragged, x64):
    train = ragged(2)
    return Task(ja.models.OneLayer(dim=6), ja.losses.Classification(), Splits(train, token_statistics(train)))


@pytest.fixture
def params(task):
    return task.model.init(jax.random.key(1), task.data.train, dtype=jnp.float64)


@pytest.mark.parametrize(
    "until",
    [
        {"until_norm": 30.0},
        pytest.param({"until_norm": 1e9, "until_arc_length": 7.0}, marks=pytest.mark.more),
    ],
)
def test_rows_are_those_of_the_path(task, params, until):
    phase = ExactFlow(name="flow", points=6, **until)
    path = exact_flow(ja.theory.scores.one_layer(params, task.data.train), params.p, points=6, **until)
    state = phase.init(task, params, jax.random.key(0))
    assert phase.probe_steps(8) == list(range(6))
    for row in range(6):
        np.testing.assert_allclose(phase.parameter(state, "p"), path.p[row], rtol=1e-10)
        np.testing.assert_array_equal(state.params.p, phase.parameter(state, "p"))
        found = phase.metrics(state)
        for name, expected in (
            ("p_norm", path.norm),
            ("arc_length", path.arc_length),
            ("log_gradient_norm", path.log_gradient_norm),
            ("log_time", path.log_time),
        ):
            np.testing.assert_allclose(found[name], expected[row], rtol=1e-9, err_msg=name)
        # A Jacobian costs a gradient for each of the min(V, d) columns.
        assert found["evaluations"] == path.steps[row] * (6 + 6)
        state = phase.advance(task, state, 1)


def test_a_path_of_long_steps_is_followed_on_the_way_and_is_the_same(monkeypatch, cleared, x64):
    """Through the ties that it finds: a row is not there before its step, and none is followed twice."""
    monkeypatch.setattr(stiff, "LARGE", 0)
    monkeypatch.setattr(stiff, "SIZES", (4, 8))
    monkeypatch.setattr(ties, "MOST_TIED", 12)
    data = ja.data.Independent(vocab_size=24, relevant=8, length=5, sequences=40)
    train = data.draw(jax.random.key(3)).train
    start = ja.models.one_layer.init(jax.random.key(4), vocab_size=24, dim=32, dtype=jnp.float64)
    params = ja.dynamics.one_step(start, train, step_size=60.0)
    whole = exact_flow(ja.theory.scores.one_layer(params, train), params.p, until_norm=1e5, points=8)
    assert (np.asarray(whole.selection.counts(train)) > 1).any()
    phase = ExactFlow(name="flow", points=8, until_norm=1e5)
    task = Task(
        ja.models.OneLayer(dim=32), ja.losses.Classification(), Splits(train, token_statistics(train))
    )
    state = phase.init(task, params, jax.random.key(0))
    like = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state)
    for row in range(8):
        assert int(state.path.integration.reached) == row + (0 < row < 7)
        assert phase.metrics(state)["came_to_end"] == (row == 7)
        for name, found in phase.metrics(state).items():
            if hasattr(whole, name):
                np.testing.assert_allclose(found, getattr(whole, name)[row], rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(phase.parameter(state, "p"), whole.p[row], rtol=1e-8, atol=1e-10)
        state = phase.advance(task, state, 1)
        assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == like
    assert int(state.path.integration.accepted) == int(whole.accepted)


@pytest.mark.more
def test_the_query_keeps_its_precision_in_a_float32_study(task, params):
    single = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    phase = ExactFlow(name="flow", points=4, until_norm=30.0)
    state = phase.advance(task, phase.init(task, single, jax.random.key(0)), 3)
    assert state.params.p.dtype == jnp.float32
    assert phase.parameter(state, "p").dtype == jnp.float64
    np.testing.assert_array_equal(state.params.p, phase.parameter(state, "p").astype(jnp.float32))


def test_a_flow_that_fails_says_at_which_row(task, params):
    phase = ExactFlow(name="flow", points=6, until_norm=30.0)
    broken = params.replace(p=params.p * jnp.nan)
    state = phase.init(task, broken, jax.random.key(0))
    assert int(state.failed_at) == 0
    good = phase.init(task, params, jax.random.key(0))
    assert int(phase.advance(task, good, 5).failed_at) == -1


@pytest.mark.more
def test_rows_of_the_joint_flow_hold_p_and_v(task, params):
    phase = JointFlow(name="flow", points=6, until_norm=30.0)
    path = joint_flow(params, task.data.train, points=6, until_norm=30.0)
    state = phase.init(task, params, jax.random.key(0))
    for row in range(6):
        found = phase.metrics(state)
        np.testing.assert_allclose(phase.parameter(state, "p"), path.p[row], rtol=1e-9)
        np.testing.assert_allclose(found["p_norm"], path.norm[row], rtol=1e-9)
        np.testing.assert_allclose(found["log_v_norm"], path.log_v_norm[row], rtol=1e-9)
        length = min(np.exp(path.log_v_norm[row]), 1e15)
        np.testing.assert_allclose(state.params.v, length * path.v[row], rtol=1e-8)
        # Of p and of v, where the Jacobian of either costs a gradient for each of its 6 columns.
        assert found["evaluations"] == path.steps[row] * 2 * (6 + 6)
        state = phase.advance(task, state, 1)
    assert state.params.E is params.E


@pytest.mark.more
def test_rows_of_the_full_flow_hold_all_parameters(task, params):
    phase = FullFlow(name="flow", points=4, until_log_loss=-3.0)
    path = full_flow(params, task.data.train, points=4, until_log_loss=-3.0)
    state = phase.init(task, params, jax.random.key(0))
    for row in range(4):
        for name in ("E", "p", "v"):
            expected = getattr(path, name)[row] @ path.basis.T
            np.testing.assert_allclose(getattr(state.params, name), expected, rtol=1e-7, atol=1e-9)
        assert phase.metrics(state)["log_loss"] == pytest.approx(path.log_loss[row])
        state = phase.advance(task, state, 1)
