"""Running phases on a task without a study."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics import Descent, ExactFlow, LogDescent, OneStep, Task, run
from jaxattn.dynamics.flows.flow_phase import from_function


@pytest.fixture
def corpus(task):
    return task.data.train


def sgd(**changes):
    settings: dict[str, Any] = {"name": "q", "train": ["p"], "optimizer": "sgd", "step_size": 0.5, "steps": 3}
    return Descent(**settings | changes)


def logistic_loss(p, params, corpus):
    """Return the mean logistic loss of sequences, with a softmax over positions."""
    params = params.replace(p=jnp.asarray(p))
    ids, mask = ja.models.reference.padded_sequences(corpus)
    outputs = ja.models.reference.outputs(params, ids, mask)
    return jnp.log1p(jnp.exp(-corpus.targets * outputs)).mean()


def plain(params, corpus, sizes, steps=3):
    """Return p after some steps of gradient descent in NumPy for each step size, (S, d)."""
    slope, found = jax.jit(jax.grad(lambda p: logistic_loss(p, params, corpus))), []
    for size in sizes:
        p = np.asarray(params.p)
        for _ in range(steps):
            p = p - size * np.asarray(slope(p))
        found.append(p)
    return np.stack(found)


def test_settings_can_be_traced(corpus, params):
    """vmap over a step size inside of jit is a loop over step sizes, and grad is the difference quotient."""

    def end(size):
        return run(sgd(step_size=size), Task(data=corpus), params)

    sizes = jnp.array([0.5, 2.0])
    found = jax.jit(jax.vmap(end))(sizes)
    np.testing.assert_allclose(found.params.p, plain(params, corpus, sizes), rtol=1e-10)
    np.testing.assert_array_equal(found.step, [3, 3])

    def loss(size):
        return ja.dynamics.loss(end(size).params, corpus)

    ends = plain(params, corpus, (0.5 - 1e-4, 0.5 + 1e-4))
    below, above = (float(logistic_loss(p, params, corpus)) for p in ends)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(0.5), (above - below) / 2e-4, rtol=1e-5)


def test_options_of_an_optimizer_can_be_traced(corpus, params):
    def end(momentum):
        return run(sgd(options={"momentum": momentum}), Task(data=corpus), params).params.p

    found = jax.vmap(end)(jnp.array([0.0, 0.9]))
    for momentum, p in zip((0.0, 0.9), found, strict=True):
        np.testing.assert_allclose(p, end(momentum), rtol=1e-12)
    assert (found[0] != found[1]).any()


def test_phases_with_equal_settings_share_a_program(task, params):
    """One program takes any given number of steps with any step size that is an array."""
    traced = []

    class Counted(Descent, kw_only=True):
        def step(self, task, state):
            traced.append(None)
            return super().step(task, state)

    def end(start, size, steps):
        settings = {"train": ["p"], "optimizer": "sgd", "steps": 9, "options": {"nesterov": False}}
        phase = Counted(name="q", step_size=jnp.asarray(size), **settings)
        return run(phase, Task(ja.models.OneLayer(dim=6), data=task.data), start, steps=steps)

    two, five = end(params, 0.5, 2), end(params, 0.5, 5)
    end(params, 0.25, 1)
    assert len(traced) == 1
    np.testing.assert_array_equal(end(two.params, 0.5, 3).params.p, five.params.p)
    run(Counted(name="q", train=["p"], optimizer="sgd", steps=9, step_size=0.5), task, params, steps=2)
    assert len(traced) == 2


def test_a_phase_resumes_from_a_state(corpus, params):
    task, phase, key = Task(data=corpus), sgd(batch_size=4, steps=7), jax.random.key(1)
    state = run(phase, task, params, key, steps=3)
    resumed = jax.jit(lambda state: phase.advance(task, state, 4))(state)
    jax.tree.map(np.testing.assert_array_equal, resumed, run(phase, task, params, key, steps=7))
    assert int(run(phase, task, params, key, steps=0).step) == 0


def test_a_custom_phase_runs_without_a_study(corpus, params):
    class Noise(ja.Phase, kw_only=True):
        train: tuple[str, ...] = ("p",)
        scale: float = 0.1
        steps: int = 2

        def init(self, task, params, key):
            zero = jnp.zeros((), jnp.int32)
            return ja.dynamics.State(params, (), zero, zero - 1, key)

        def step(self, task, state):
            noise = jax.random.normal(jax.random.fold_in(state.key, state.step), state.params.p.shape)
            params = state.params.replace(p=state.params.p + self.scale * noise)
            return state.replace(params=params, step=state.step + 1)

    key = jax.random.key(5)
    found = run(Noise(name="noise"), Task(data=corpus), params, key)
    noise = sum(jax.random.normal(jax.random.fold_in(key, step), params.p.shape) for step in (0, 1))
    np.testing.assert_allclose(found.params.p, params.p + 0.1 * noise, rtol=1e-12)
    with pytest.raises(ja.InputError, match=r"^key: the phase uses random numbers; pass a key such as"):
        run(Noise(name="noise"), Task(data=corpus), params)


def test_flows_run_in_float64_in_a_float32_session(corpus, params):
    @ja.declare(train=["p"])
    def line(params, task, *, points: int):
        rows = params.p + jnp.arange(points)[:, None] / 3
        return ja.dynamics.RecordedPath(params={"p": rows}, status=ja.dynamics.Stop.TIME)

    phase = from_function(line, "line")(name="q", points=3)
    with jax.enable_x64(False):
        single = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float32), params)
        state = run(phase, Task(data=corpus), single)
    rows = np.asarray(single.p, np.float64) + np.arange(3)[:, None] / 3
    np.testing.assert_allclose(state.path.params["p"], rows, rtol=1e-15)
    assert (state.params.p.dtype, int(state.step)) == (jnp.float32, 2)
    np.testing.assert_allclose(state.params.p, rows[2], rtol=1e-6)


@pytest.mark.parametrize(
    "phase",
    [
        LogDescent(name="q", method="polyak", step_size=0.1, steps=2),
        ExactFlow(name="q", until_norm=20.0),
        ja.dynamics.JointFlow(name="q", until_norm=20.0),
    ],
)
def test_theory_phases_reject_the_model_or_loss_of_a_task(corpus, params, phase):
    with pytest.raises(ja.InputError, match="requires the logistic loss without label smoothing"):
        run(phase, Task(loss=ja.losses.Hinge(), data=corpus), params)
    with pytest.raises(
        ja.InputError, match=r"requires (model.kind = 'one_layer'|scores that are linear in 'p')"
    ):
        run(phase, Task(ja.models.TwoLayer(dim=6), data=corpus), params)


def test_a_task_has_the_one_layer_model_and_its_loss_by_default(task, corpus, params):
    of_data, of_splits = Task(data=corpus), Task(data=ja.data.Splits(corpus, test=corpus))
    assert of_data.data.train is of_splits.data.test is corpus
    np.testing.assert_array_equal(of_data.model.outputs(params, corpus), task.model.outputs(params, corpus))
    assert of_data.loss == ja.losses.Classification()
    assert isinstance(of_data._replace(loss=ja.losses.Hinge()), Task)
    with pytest.raises(ja.InputError, match=r"has no dimension; pass model=ja.models.OneLayer\(dim=...\)"):
        of_data.model.init(jax.random.key(0), corpus, dtype=jnp.float32)


def test_invalid_tasks_and_settings_are_rejected(corpus, params):
    vectors = ja.data.Vectors(targets=jnp.ones(3), X=jnp.ones((3, 2, 2)))
    for call, message in (
        (lambda: Task(), "data: expected a ja.Dataset or ja.data.Splits, got NoneType"),
        (
            lambda: Task(data=vectors),
            "model: requires Corpus, but the data are Vectors; choose",
        ),
        (
            lambda: run(sgd(optimizer="adamv"), Task(data=corpus), params),
            "optimizer: unknown optimiser 'adamv'",
        ),
        (lambda: run(sgd(batch_size=4), Task(data=corpus), params), "key: the phase uses random numbers"),
        (
            lambda: run(sgd(fresh=4), Task(data=corpus), params, jax.random.key(0)),
            "fresh: the task cannot sample new examples; use batch_size instead",
        ),
        (lambda: run(OneStep(name="q", step_size=1.0, train=("W",)), Task(data=corpus), params), "W: not a"),
    ):
        with pytest.raises(ja.InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "steps", "message"),
    [
        ({"step_size": -0.5}, None, "Descent.step_size: expected 'float' > 0.0, got -0.5"),
        ({"steps": 0}, None, "Descent.steps: expected 'int' >= 1, got 0"),
        ({}, -1, "steps: must be at least 0, got -1"),
    ],
)
def test_numbers_outside_their_range_are_rejected(corpus, params, changes, steps, message):
    with pytest.raises(ja.InputError) as error:
        run(sgd(**changes), Task(data=corpus), params, steps=steps)
    assert str(error.value) == message
