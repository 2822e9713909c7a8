"""The exact flow as a phase whose steps are rows of its path."""

import inspect
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.data import Splits, token_statistics
from jaxattn.dynamics import ExactFlow, FullFlow, JointFlow, Stop, exact_flow, full_flow, joint_flow
from jaxattn.dynamics.flows import stiff, ties


@pytest.mark.parametrize(
    "until",
    [
        {"until_norm": 30.0},
        pytest.param({"until_norm": 1e9, "until_arc_length": 7.0}, marks=pytest.mark.more),
    ],
)
@pytest.mark.more
def test_rows_match_the_path(task, params, until):
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
        # A Jacobian costs one gradient for each of its min(V, d) columns.
        assert found["evaluations"] == path.steps[row] * (6 + 6)
        state = phase.advance(task, state, 1)


@pytest.mark.more
def test_path_with_expensive_steps_is_computed_incrementally(monkeypatch, cleared, x64):
    """The path has ties: a row is not computed before its step, and no row is computed twice."""
    monkeypatch.setattr(stiff, "MANY_DIMS", 0)
    monkeypatch.setattr(stiff, "SIZES", (4, 8))
    monkeypatch.setattr(ties, "MAX_TIED", 12)
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
        found = phase.metrics(state)
        for name in ("norm", "arc_length", "log_gradient_norm", "log_time", "steps"):
            expected = getattr(whole, name)[row]
            followed = getattr(state.path if name == "norm" else state.path.rows, name)[row]
            np.testing.assert_allclose(followed, expected, rtol=1e-9, err_msg=name)
            if name in found:
                np.testing.assert_array_equal(found[name], followed)
        assert found["p_norm"] == state.path.norm[row]
        np.testing.assert_allclose(phase.parameter(state, "p"), whole.p[row], rtol=1e-8, atol=1e-10)
        state = phase.advance(task, state, 1)
        assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == like
    assert int(state.path.integration.accepted) == int(whole.accepted)


@pytest.mark.slow
def test_vmapped_paths_can_end_at_different_rows(monkeypatch, cleared, x64):
    monkeypatch.setattr(stiff, "MANY_DIMS", 0)
    monkeypatch.setattr(stiff, "SIZES", (4, 8))
    monkeypatch.setattr(ties, "MAX_TIED", 12)
    data = ja.data.Independent(vocab_size=12, relevant=6, length=4, sequences=24, num_classes=3)
    model = ja.models.OneLayer(dim=16)
    phase = ExactFlow(name="flow", points=12, until_norm=1e3, max_steps=100)

    def lane(key):
        train = data.draw(key).train
        params = model.init(key, train, dtype=jnp.float64)
        return Task(model, ja.losses.Classification(), Splits(train, token_statistics(train))), params

    def scores(key):
        task, params = lane(key)
        return model.scores(params, task.data.train), params.p

    keys = jax.random.split(jax.random.key(5), 6)
    whole = jax.vmap(lambda key: exact_flow(*scores(key), until_norm=1e3, max_steps=100, points=12))(keys)
    state = jax.vmap(lambda key: phase.init(*lane(key), key))(keys)
    advance = jax.jit(jax.vmap(lambda key, state: phase.advance(lane(key)[0], state, 1)))
    for _ in range(11):
        state = advance(keys, state)
    np.testing.assert_array_equal(state.path.status, whole.status)
    assert len(set(np.asarray(state.path.integration.reached).tolist())) > 1
    arrived = np.asarray(whole.status) == Stop.NORM
    np.testing.assert_allclose(state.path.norm[arrived], whole.norm[arrived], rtol=1e-8)
    # Two programs round differently; near balances, where forces cancel to three digits, this is amplified.
    np.testing.assert_allclose(state.path.norm, whole.norm, rtol=1e-5)
    np.testing.assert_allclose(state.path.p[arrived], whole.p[arrived], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(state.path.p, whole.p, atol=1e-3)


@pytest.mark.parametrize(
    ("ends", "goal"),
    [
        ({"until_norm": 50.0}, ("p_norm", "‖p‖", 50.0)),
        ({"until_norm": 50.0, "until_arc_length": 70.0}, ("p_norm", "‖p‖", 50.0)),
        ({"until_arc_length": 7.0}, ("arc_length", "arc length", 7.0)),
        ({"until_norm": np.inf, "until_arc_length": 7.0}, ("arc_length", "arc length", 7.0)),
    ],
)
def test_goal_is_the_stopping_condition_with_the_smallest_value(ends, goal):
    phase = ExactFlow(name="flow", **ends)
    assert phase.goal == goal


def test_path_without_a_finite_stopping_condition_is_rejected(task):
    phase = ExactFlow(name="flow", until_norm=np.inf)
    setting = SimpleNamespace(model=task.model, loss=task.loss, data=task.data)
    with pytest.raises(ja.InputError, match="both infinite; set at least one"):
        phase.check(setting)


@pytest.mark.more
def test_p_is_available_in_float64_even_in_a_float32_study(task, params):
    single = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    phase = ExactFlow(name="flow", points=4, until_norm=30.0)
    state = phase.advance(task, phase.init(task, single, jax.random.key(0)), 3)
    assert state.params.p.dtype == jnp.float32
    assert phase.parameter(state, "p").dtype == jnp.float64
    np.testing.assert_array_equal(state.params.p, phase.parameter(state, "p").astype(jnp.float32))


@pytest.mark.more
def test_row_at_which_a_flow_fails_is_recorded(task, params):
    phase = ExactFlow(name="flow", points=6, until_norm=30.0)
    broken = params.replace(p=params.p * jnp.nan)
    state = phase.init(task, broken, jax.random.key(0))
    assert int(state.failed_at) == 0
    good = phase.init(task, params, jax.random.key(0))
    assert int(phase.advance(task, good, 5).failed_at) == -1


@pytest.mark.more
def test_joint_flow_rows_contain_p_and_v(task, params):
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
        # The Jacobians of p and of v cost one gradient for each of their 6 columns.
        assert found["evaluations"] == path.steps[row] * 2 * (6 + 6)
        state = phase.advance(task, state, 1)
    assert state.params.E is params.E


@pytest.mark.more
def test_full_flow_rows_contain_all_parameters(task, params):
    phase = FullFlow(name="flow", points=4, until_log_loss=-3.0)
    path = full_flow(params, task.data.train, points=4, until_log_loss=-3.0)
    state = phase.init(task, params, jax.random.key(0))
    for row in range(4):
        for name in ("E", "p", "v"):
            expected = getattr(path, name)[row] @ path.basis.T
            np.testing.assert_allclose(getattr(state.params, name), expected, rtol=1e-7, atol=1e-9)
        assert phase.metrics(state)["log_loss"] == pytest.approx(path.log_loss[row])
        state = phase.advance(task, state, 1)


@pytest.mark.parametrize(
    ("phase", "further", "without"),
    [
        (ExactFlow, {"linear_in": None}, {"gradient_rtol", "width"}),
        (JointFlow, {}, {"width"}),
        (FullFlow, {}, {"width"}),
    ],
)
def test_settings_match_the_arguments_of_the_flow(phase, further, without):
    parameters = inspect.signature(phase.function).parameters.values()
    wanted = {x.name: x.default for x in parameters if x.kind is x.KEYWORD_ONLY and x.name not in without}
    found = {field.name: field.default for field in msgspec.structs.fields(phase) if field.name != "name"}
    assert found == wanted | further
