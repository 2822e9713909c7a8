import re
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics import Task, run
from jaxattn.dynamics.descents.descent import assign_minibatches

pytestmark = pytest.mark.usefixtures("x64")
EVERYTHING = slice(None)


def stepped(params, gradients, size, train):
    """Return parameters after a gradient step on those in `train`."""
    moved = {name: getattr(params, name) - size * getattr(gradients, name) for name in train}
    return params.replace(**moved)


def assert_close(params, expected, rtol=1e-10, atol=1e-12):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), params, expected)


@pytest.mark.parametrize("name", ["sgd", "normalized", "polyak", "adam"])
def test_steps_match_an_explicit_loop(problem, plain_gradient, descent, name):
    train = ("E", "p")
    options = {"loss_floor": 0.1} if name == "polyak" else {}
    phase = descent(optimizer=name, step_size=0.05, train=train, options=options)
    got = run(phase, problem.task, problem.params, steps=4)
    theta = {key: np.asarray(getattr(problem.params, key)) for key in train}
    moments = {key: (np.zeros_like(x), np.zeros_like(x)) for key, x in theta.items()}
    for step in range(1, 5):
        current = problem.params.replace(**{key: jnp.asarray(x) for key, x in theta.items()})
        loss, gradients = plain_gradient(current, EVERYTHING)
        gradient = {key: np.asarray(getattr(gradients, key)) for key in train}
        squared = sum((g**2).sum() for g in gradient.values())
        for key, g in gradient.items():
            if name == "sgd":
                update = 0.05 * g
            elif name == "normalized":
                update = 0.05 * g / np.sqrt(squared)
            elif name == "polyak":
                update = min(0.05, (float(loss) - 0.1) / squared) * g
            else:
                m = 0.9 * moments[key][0] + 0.1 * g
                s = 0.999 * moments[key][1] + 0.001 * g**2
                moments[key] = (m, s)
                update = 0.05 * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
            theta[key] = theta[key] - update
    assert_close({key: getattr(got.params, key) for key in train}, theta, rtol=1e-9)
    np.testing.assert_array_equal(got.params.v, problem.params.v)
    assert (int(got.step), int(got.failed_at)) == (4, -1)


@pytest.mark.more
def test_small_steps_on_p_approximate_gradient_flow(problem, plain_gradient, descent):
    """Halving the step halves the distance to the flow integrated by SciPy."""
    from scipy.integrate import solve_ivp

    params = problem.params

    def slope(t, p):
        return -np.asarray(plain_gradient(params.replace(p=jnp.asarray(p)), EVERYTHING)[1].p)

    flow = solve_ivp(slope, (0, 40), params.p, rtol=1e-10, atol=1e-12).y[:, -1]
    errors = []
    for size, steps in ((0.1, 400), (0.05, 800)):
        phase = descent(step_size=size, train=("p",))
        errors.append(np.linalg.norm(run(phase, problem.task, params, steps=steps).params.p - flow))
    assert errors[1] < 1e-2
    assert 1.8 < errors[0] / errors[1] < 2.2


def test_first_failing_step_is_recorded_and_other_seeds_continue(problem, descent):
    phase, params = descent(train=("p",)), problem.params
    advance = jax.jit(jax.vmap(lambda state, steps: phase.advance(problem.task, state, steps), (0, None)))
    start = phase.init(problem.task, params, jax.random.key(0))
    state = advance(jax.tree.map(lambda x: jnp.stack([x, x]), start), 3)
    state = state.replace(params=state.params.replace(p=state.params.p.at[1, 0].set(jnp.nan)))
    state = advance(state, 5)
    np.testing.assert_array_equal(state.failed_at, [-1, 3])
    alone = run(phase, problem.task, params, steps=8)
    np.testing.assert_allclose(state.params.p[0], alone.params.p, rtol=1e-12)


@pytest.mark.parametrize("train", [("E",), pytest.param(("p",), marks=pytest.mark.more), ("E", "p", "v")])
def test_parameters_are_nan_after_a_failing_step(problem, descent, train):
    params = problem.params.replace(v=problem.params.v.at[0].set(jnp.inf))
    moved = run(descent(train=train), problem.task, params, steps=1)
    assert int(moved.failed_at) == 0
    for name in ("E", "p"):
        assert np.isnan(getattr(moved.params, name)).all() == (name in train)


def test_joint_step_does_not_copy_embeddings_or_store_their_gradient(problem, descent):
    """The only arrays of the size of E that a step of Adam writes are E and its two moments."""
    params = jax.tree.map(lambda x: jnp.ones((*x.shape[:-1], 640), jnp.float32), problem.params)
    phase = descent(optimizer="adam", step_size=0.01)
    state = phase.init(problem.task, params, jax.random.key(0))
    loop = jax.jit(lambda state, steps: phase.advance(problem.task, state, steps), donate_argnums=0)
    text = loop.lower(state, 5).compile().as_text()
    body = [line for line in text.splitlines() if re.search(r"= f32\[12,640\]\S* (copy|fusion|call)\(", line)]
    assert len(body) == 3, body


def test_every_sequence_is_in_one_minibatch_per_epoch():
    steps = jnp.arange(8, dtype=jnp.int32)
    dealt = jax.jit(jax.vmap(lambda step: assign_minibatches(jax.random.key(5), step, 7, 30)))(steps)
    np.testing.assert_array_equal(np.sort(dealt, axis=1), np.tile(np.arange(30), (8, 1)))
    chosen = np.asarray(dealt) < 7
    for epoch in (chosen[:4], chosen[4:]):
        assert (epoch.sum(axis=0) <= 1).all()
    assert (chosen[0] != chosen[4]).any()


class Extracting(ja.models.OneLayer, kw_only=True):
    """One-layer model whose minibatches are extracted from the corpus."""

    cuts_batches = True


class Contrast(ja.Loss):
    """Minus the log of the share of positive sequences in the sum of exponentiated margins."""

    coupled = True

    def __call__(self, logits, labels):
        return jax.nn.logsumexp(logits) - jax.nn.logsumexp(jnp.where(labels > 0, logits, -jnp.inf))


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (8, {}),
        (8, {"model": Extracting(dim=8)}),
        pytest.param(8, {"loss": Contrast()}, marks=pytest.mark.more),
        pytest.param(40, {}, marks=pytest.mark.more),
    ],
)
def test_minibatch_steps_equal_full_steps_on_the_same_examples(
    problem, plain_gradient, by_position, descent, size, changes
):
    """Seven steps contain the end of an epoch of five."""
    phase, key, train = descent(train=("E", "p"), batch_size=size), jax.random.key(3), ("E", "p")
    task = problem.task._replace(**changes)
    assign = jax.jit(lambda step: assign_minibatches(key, step, size, 40))
    labels = np.asarray(problem.corpus.targets)

    @jax.jit
    @jax.grad
    def contrast(params, own):
        f = by_position(params, jnp.asarray(problem.ids)[own])
        return -jnp.log((jnp.exp(f) * (jnp.asarray(labels)[own] > 0)).sum() / jnp.exp(f).sum())

    expected = problem.params
    for step in range(7):
        (own,) = np.nonzero(np.asarray(assign(jnp.int32(step))) < size)
        slopes = contrast(expected, own) if "loss" in changes else plain_gradient(expected, own)[1]
        expected = stepped(expected, slopes, 0.5, train)
    assert_close(run(phase, task, problem.params, key, steps=7).params, expected)


def test_every_step_of_fresh_examples_uses_new_ones(problem, plain_gradient, descent):
    """Fresh examples are a random subset of the training data, so that the loop knows their ids."""

    def rows(key):
        return jax.random.permutation(key, 40)[:8]

    task = problem.task._replace(fresh=lambda key, examples: problem.corpus.take(rows(key)))
    key, expected = jax.random.key(4), problem.params
    for step in range(3):
        own = np.asarray(rows(jax.random.fold_in(key, step)))
        expected = stepped(expected, plain_gradient(expected, own)[1], 0.5, ("E", "p", "v"))
    assert_close(run(descent(fresh=8), task, problem.params, key, steps=3).params, expected)


@pytest.mark.more
def test_lbfgs_on_p_reaches_the_same_loss_as_scipy(problem, plain_gradient, descent):
    """L-BFGS on p reaches the same loss in 30 steps as SciPy's."""
    from scipy.optimize import minimize

    def objective(p):
        loss, gradients = plain_gradient(problem.params.replace(p=jnp.asarray(p)), EVERYTHING)
        return float(loss), np.asarray(gradients.p)

    end = run(descent(optimizer="lbfgs", train=("p",), step_size=1.0), problem.task, problem.params, steps=30)
    theirs = minimize(objective, problem.params.p, jac=True, method="L-BFGS-B", options={"maxiter": 30}).fun
    assert objective(end.params.p)[0] < theirs + 0.01
    assert objective(end.params.p)[0] < objective(problem.params.p)[0] - 0.02


class Named(NamedTuple):
    """Parameters by other names."""

    rows: jax.Array
    query: jax.Array


class OfNames(ja.Model):
    """One-layer model with a fixed read-out vector."""

    takes = ja.data.Corpus

    def outputs(self, params, data):
        return ja.attention.attend(data, params.rows @ params.query, params.rows.sum(axis=1))


def test_descent_accepts_a_custom_model_and_loss(problem, by_position, descent):
    start = Named(problem.params.E, problem.params.p)
    task = Task(OfNames(), ja.losses.Squared(), problem.corpus)
    got = run(descent(train=("rows", "query")), task, start, steps=3).params

    @jax.jit
    @jax.grad
    def loss(params):
        plain = ja.models.one_layer.Params(*params, jnp.ones(8))
        return ((problem.corpus.targets - by_position(plain, problem.ids)) ** 2).mean() / 2

    for _ in range(3):
        start = jax.tree.map(lambda x, g: x - 0.5 * g, start, loss(start))
    assert_close(got, start)


def test_unknown_parameter_is_rejected(problem, descent):
    with pytest.raises(ja.InputError, match="q: not a parameter of the model; known: E, p, v"):
        run(descent(train=("q",)), problem.task, problem.params)


def test_batch_size_above_the_number_of_examples_is_rejected(problem, descent):
    """A study rejects it before sampling the data, and the phase rejects the data of a task."""
    data = ja.data.Independent(vocab_size=9, relevant=4, length=3, sequences=30)
    with pytest.raises(ja.InputError, match=r"batch_size: 31 exceeds the 30 examples; use"):
        descent(batch_size=31).check(SimpleNamespace(data=data, model=None, loss=None))
    descent(batch_size=30).check(SimpleNamespace(data=data, model=None, loss=None))
    with pytest.raises(ja.InputError, match=r"batch_size: 41 exceeds the 40 examples; use"):
        run(descent(batch_size=41), problem.task, problem.params, jax.random.key(0))


def test_one_step_moves_only_the_trained_parameters_along_the_gradient(problem, plain_gradient):
    _, gradients = plain_gradient(problem.params, EVERYTHING)
    for train, settings in ((("E",), {}), (("p", "v"), {"train": ("p", "v")})):
        step = jax.jit(partial(ja.dynamics.one_step, step_size=10.0, **settings))
        moved = step(problem.params, problem.corpus)
        assert_close(moved, stepped(problem.params, gradients, 10.0, train))
        for name in {"E", "p", "v"}.difference(train):
            np.testing.assert_array_equal(getattr(moved, name), getattr(problem.params, name))


def test_one_step_adds_half_the_importance_to_the_values(problem, rng):
    corpus = problem.corpus
    wide = [jnp.asarray(rng.normal(size=(*x.shape[:-1], 4096)) / 64) for x in jax.tree.leaves(problem.params)]
    params = ja.models.one_layer.Params(*wide).replace(v=wide[2] / jnp.linalg.norm(wide[2]))
    moved = jax.jit(partial(ja.dynamics.one_step, step_size=2e3))(params, corpus)
    alpha = np.asarray(ja.data.average_signed_frequency(corpus))
    important = np.abs(alpha) > 0.03
    assert important.sum() > 6
    np.testing.assert_allclose((moved.E @ params.v)[important] / (2e3 * alpha[important] / 2), 1, atol=0.1)


def test_one_step_accepts_dict_parameters_and_a_custom_loss(problem, by_position):
    def outputs(own, corpus):
        return ja.models.one_layer.outputs(ja.models.one_layer.Params(**own), corpus)

    exponential, start = ja.losses.Exponential(), vars(problem.params)
    given = {"train": ("p",), "outputs": outputs, "per_sequence": exponential}
    moved = jax.jit(partial(ja.dynamics.one_step, step_size=2.0, **given))(start, problem.corpus)
    value, _ = jax.jit(partial(ja.dynamics.loss_and_gradients, **given))(start, problem.corpus)

    @jax.jit
    @jax.value_and_grad
    def loss(p):
        f = by_position(problem.params.replace(p=p), problem.ids)
        return jnp.exp(-problem.corpus.targets * f).mean()

    expected, slope = loss(problem.params.p)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(moved["p"], problem.params.p - 2 * slope, rtol=1e-10, atol=1e-12)
