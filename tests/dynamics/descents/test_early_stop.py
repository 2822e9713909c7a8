import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics import Task, run

pytestmark = pytest.mark.usefixtures("x64")
STEPS, EVERY = 60, 5


@pytest.fixture(scope="module")
def others(problem):
    """Return two initial parameters that differ, with a leading seed axis."""
    with jax.enable_x64(True):
        return jax.tree.map(lambda x: jnp.stack([x, x[::-1] / 2]), problem.params)


def by_hand(problem, phase, params, patience):
    """Return the best parameters and the number of gradients before the stop, with an explicit loop."""
    task, held_out = problem.task, problem.task.data.validation
    take_step = jax.jit(lambda state: phase.step(task, state))
    loss_of = jax.jit(lambda params: ja.dynamics.loss(params, held_out))

    def train(params):
        state = phase.init(task, params, jax.random.key(3))
        best, best_loss, waited = params, np.inf, 0
        for step in range(1, STEPS + 1):
            state = take_step(state)
            if step % EVERY == 0 or step == STEPS:
                found = float(loss_of(state.params))
                waited = 0 if found < best_loss else waited + 1
                if found < best_loss:
                    best, best_loss = state.params, found
            if waited >= patience:
                return best, step
        return best, STEPS

    return [train(jax.tree.map(lambda x, k=k: x[k], params)) for k in range(2)]


@pytest.mark.parametrize(
    ("patience", "settings"),
    [
        (1, {"optimizer": "adam", "step_size": 0.1}),
        (2, {"step_size": 8.0, "batch_size": 7}),
        pytest.param(3, {"optimizer": "adam", "step_size": 0.1}, marks=pytest.mark.more),
        pytest.param(100, {"optimizer": "adam", "step_size": 0.1}, marks=pytest.mark.more),
        pytest.param(2, {"optimizer": "polyak", "step_size": 40.0}, marks=pytest.mark.more),
    ],
)
def test_vmapped_runs_stop_independently_with_their_best_parameters(
    problem, descent, others, patience, settings
):
    expected = by_hand(problem, descent(**settings), others, patience)
    phase = descent(**settings, patience=patience, check_every=EVERY)
    state = jax.vmap(lambda params: run(phase, problem.task, params, jax.random.key(3)))(others)
    assert min(gave_up for _, gave_up in expected) < STEPS or patience == 100
    np.testing.assert_array_equal(phase.metrics(state)["evaluations"], [number for _, number in expected])
    np.testing.assert_array_equal(state.step, [STEPS, STEPS])
    for k, (best, _) in enumerate(expected):
        np.testing.assert_allclose(state.params.E[k], best.E, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(state.params.v[k], best.v, rtol=1e-10, atol=1e-13)


class Constant(ja.Model):
    """Model whose outputs are all p."""

    def outputs(self, params, data):
        return jnp.broadcast_to(params["p"], data.targets.shape)


def approaching(loss):
    """Return a task whose training targets are 3 and whose 30 validation targets are 1."""
    train, validation = (ja.Dataset(targets=jnp.full(n, y)) for n, y in ((40, 3.0), (30, 1.0)))
    return Task(Constant(), loss, ja.data.Splits(train, validation=validation))


def test_advancing_several_steps_at_once_equals_single_steps(descent):
    """Steps of Adam have length 0.1, so p = 0 and p = -1 pass the best value 1 after 10 and 20 steps."""
    task, starts = approaching(ja.losses.SquaredError()), {"p": jnp.array([0.0, -1.0])}
    settings = {"train": ("p",), "optimizer": "adam", "step_size": 0.1}
    phase = descent(**settings, patience=1, check_every=EVERY, steps=STEPS - 2)
    advance = jax.jit(jax.vmap(lambda state, k: phase.advance(task, state, k), (0, None)))
    one_by_one = jax.jit(jax.vmap(lambda state: phase.step(task, state)))
    state = jax.vmap(lambda params: phase.init(task, params, jax.random.key(0)))(starts)
    expected, done = state, 0
    for number in (EVERY - 1, 4, 0, 2, 21, STEPS - 2 - 31):
        state, done = advance(state, number), done + number
        for _ in range(number):
            expected = one_by_one(expected)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-14), state, expected)
        if done == EVERY - 1:
            # Before the first check, it is an ordinary descent.
            ordinary = run(descent(**settings), task, {"p": starts["p"][1]}, steps=done)
            np.testing.assert_allclose(state.params["p"][1], ordinary.params["p"], rtol=1e-12)
    assert done == int(state.step[0]) == STEPS - 2
    np.testing.assert_array_equal(state.early_stop.waited, [1, 1])
    np.testing.assert_array_equal(state.early_stop.evaluations, [15, 25])
    np.testing.assert_allclose(state.params["p"], [1, 1], atol=0.1)


def test_held_out_loss_is_evaluated_only_between_blocks(descent):
    looks = []

    class Watched(ja.Loss):
        def __call__(self, outputs, targets):
            jax.debug.callback(lambda _: looks.append(targets.size), outputs.sum())
            return (outputs - targets) ** 2

    phase = descent(train=("p",), step_size=0.02, patience=99, check_every=EVERY)
    task, starts = approaching(Watched()), {"p": jnp.array([0.0, -1.0])}
    jax.block_until_ready(jax.vmap(lambda params: run(phase, task, params, steps=4 * EVERY))(starts))
    jax.effects_barrier()
    # Each of two vmapped runs evaluates the held-out loss four times in twenty steps.
    assert looks.count(30) == 2 * 4
    assert looks.count(40) >= 2 * 4 * EVERY


class OfScores(ja.Model):
    """Attention with trained scores and values of the tokens."""

    takes = ja.data.Corpus

    def outputs(self, params, data):
        return ja.attention.attend(data, params["scores"], params["values"])


def test_early_stop_accepts_custom_parameters_and_loss(problem, descent):
    params = {"scores": problem.params.E @ problem.params.p, "values": problem.params.E @ problem.params.v}
    held_out = problem.task.data.validation
    task = Task(OfScores(), ja.losses.Squared(), problem.task.data)
    phase = descent(train=("values",), step_size=1.0, steps=9, patience=9, check_every=3)
    state = run(phase, task, params)
    assert state.early_stop.best_loss.dtype == jnp.float64
    expected = ((held_out.targets - task.model.outputs(state.params, held_out)) ** 2).mean() / 2
    np.testing.assert_allclose(state.early_stop.best_loss, expected, rtol=1e-12)


def test_step_of_a_subclass_is_taken_with_early_stopping(problem):
    class Shifted(ja.dynamics.Descent, frozen=True, kw_only=True):
        def step(self, task, state):
            return state.replace(params=state.params.replace(p=state.params.p + 1))

    phase = Shifted(name="q", train=["p"], optimizer="sgd", step_size=0.1, steps=9, patience=5)
    found = run(phase, problem.task, problem.params, steps=2)
    np.testing.assert_allclose(found.params.p, problem.params.p + 2, rtol=1e-15)
    assert int(found.step) == 2


def test_early_stop_without_validation_data_is_rejected(problem, descent):
    with pytest.raises(
        ja.InputError, match="patience: the task has no validation data; add a validation split"
    ):
        run(descent(patience=1), Task(data=problem.corpus), problem.params)
