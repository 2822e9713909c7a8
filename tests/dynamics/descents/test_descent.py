import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxattn as ja
from jaxattn.attention import attend
from jaxattn.core.errors import InputError
from jaxattn.dynamics import descent, early_stop, loss, optimizer, run
from jaxattn.dynamics.descents.descent import assign_minibatches
from jaxattn.dynamics.descents.descent_phase import Descent


@pytest.fixture
def problem(x64):
    corpus = ja.data.independent(jax.random.key(0), vocab_size=20, relevant=10, length=6, sequences=40)
    params = ja.models.one_layer.init(jax.random.key(1), vocab_size=20, dim=16, dtype=jnp.float64)
    return params, corpus


gradients = jax.jit(jax.grad(ja.dynamics.loss))


@pytest.mark.parametrize("name", ["sgd", "normalized", "polyak", "adam"])
def test_steps_match_an_explicit_loop(problem, name):
    params, corpus = problem
    train = ("E", "p")
    options = {"loss_floor": 0.1} if name == "polyak" else {}
    algorithm = descent(optimizer(name, 0.05, **options), train=train)
    got = run(algorithm, algorithm.init(params), corpus, 4).params
    theta = {key: np.asarray(getattr(params, key)) for key in train}
    moments = {key: (np.zeros_like(x), np.zeros_like(x)) for key, x in theta.items()}
    for step in range(1, 5):
        current = params.replace(**{key: jnp.asarray(x) for key, x in theta.items()})
        gradient = {key: np.asarray(getattr(gradients(current, corpus), key)) for key in train}
        squared = sum((g**2).sum() for g in gradient.values())
        for key, g in gradient.items():
            if name == "sgd":
                update = 0.05 * g
            elif name == "normalized":
                update = 0.05 * g / np.sqrt(squared)
            elif name == "polyak":
                loss = float(ja.dynamics.loss(current, corpus))
                update = min(0.05, (loss - 0.1) / squared) * g
            else:
                m = 0.9 * moments[key][0] + 0.1 * g
                s = 0.999 * moments[key][1] + 0.001 * g**2
                moments[key] = (m, s)
                update = 0.05 * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
            theta[key] = theta[key] - update
    for key in train:
        np.testing.assert_allclose(getattr(got, key), theta[key], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(got.v, params.v)


def test_split_runs_are_bitwise_identical_to_a_single_run(problem):
    params, corpus = problem
    algorithm = descent(optimizer("adam", 0.01), train=("E", "p", "v"))
    advance = jax.jit(lambda state, steps: run(algorithm, state, corpus, steps))
    straight = advance(algorithm.init(params), 30)
    split = advance(advance(advance(algorithm.init(params), 1), 12), 17)
    for one, other in zip(jax.tree.leaves(straight), jax.tree.leaves(split), strict=True):
        np.testing.assert_array_equal(one, other)


def test_loop_is_traced_once_for_any_number_of_steps(problem):
    params, corpus = problem
    algorithm, traced = descent(optimizer("sgd", 0.1), train=["p"]), []

    def step(state, data):
        traced.append(None)
        return algorithm.step(state, data)

    counting = algorithm._replace(step=step)
    ends = [run(counting, algorithm.init(params), corpus, steps) for steps in (1, 3)]
    assert len(traced) == 1
    np.testing.assert_array_equal(run(counting, ends[0], corpus, 2).params.p, ends[1].params.p)


def test_small_steps_on_p_approximate_gradient_flow(problem):
    """Halving the step halves the distance to the flow integrated by SciPy."""
    from scipy.integrate import solve_ivp

    params, corpus = problem
    gradient = jax.jit(lambda p: gradients(params.replace(p=p), corpus).p)
    flow = solve_ivp(lambda t, p: -np.asarray(gradient(p)), (0, 40), params.p, rtol=1e-10, atol=1e-12).y[
        :, -1
    ]
    errors = []
    for size, steps in ((0.1, 400), (0.05, 800)):
        algorithm = descent(optax.sgd(size), train=("p",))
        errors.append(np.linalg.norm(run(algorithm, algorithm.init(params), corpus, steps).params.p - flow))
    assert errors[1] < 1e-3
    assert 1.8 < errors[0] / errors[1] < 2.2


def test_first_failing_step_is_recorded_and_other_seeds_continue(problem):
    params, corpus = problem
    algorithm = descent(optimizer("sgd", 0.1), train=("p",))
    both = jax.tree.map(lambda x: jnp.stack([x, x]), algorithm.init(params))
    run_both = jax.jit(jax.vmap(lambda state, steps: run(algorithm, state, corpus, steps), in_axes=(0, None)))
    state = run_both(both, 3)
    state = state.replace(params=state.params.replace(p=state.params.p.at[1, 0].set(jnp.nan)))
    state = run_both(state, 5)
    np.testing.assert_array_equal(state.failed_at, [-1, 3])
    alone = run(algorithm, algorithm.init(params), corpus, 8)
    np.testing.assert_allclose(state.params.p[0], alone.params.p, rtol=1e-12)


@pytest.mark.parametrize("train", [("E",), ("p",), ("E", "p", "v")])
def test_parameters_are_nan_after_a_failing_step(problem, train):
    params, corpus = problem
    algorithm = descent(optimizer("sgd", 0.1), train=train)
    state = algorithm.init(params.replace(v=params.v.at[0].set(jnp.inf)))
    moved, _ = jax.jit(algorithm.step)(state, corpus)
    assert int(moved.failed_at) == 0
    for name in ("E", "p"):
        assert np.isnan(getattr(moved.params, name)).all() == (name in train)


def test_joint_step_does_not_copy_embeddings_or_store_their_gradient(problem):
    """The only arrays of the size of E that a step of Adam writes are E and its two moments."""
    params, corpus = problem
    params = ja.models.one_layer.init(jax.random.key(1), vocab_size=20, dim=640)
    algorithm = descent(optimizer("adam", 0.01), train=("E", "p", "v"))
    loop = jax.jit(lambda state, steps: run(algorithm, state, corpus, steps), donate_argnums=0)
    text = loop.lower(algorithm.init(params), 5).compile().as_text()
    body = [line for line in text.splitlines() if re.search(r"= f32\[20,640\]\S* (copy|fusion|call)\(", line)]
    assert len(body) == 3, body


def test_info_contains_loss_and_gradient_norm_before_the_step(problem):
    params, corpus = problem
    algorithm = descent(optimizer("sgd", 0.1), train=("p", "v"))
    _, info = jax.jit(algorithm.step)(algorithm.init(params), corpus)
    np.testing.assert_allclose(info.loss, jax.jit(ja.dynamics.loss)(params, corpus), rtol=1e-14)
    g = gradients(params, corpus)
    np.testing.assert_allclose(info.gradient_norm, np.sqrt((g.p**2).sum() + (g.v**2).sum()), rtol=1e-12)


def test_every_sequence_is_in_one_minibatch_per_epoch(x64):
    key = jax.random.key(5)
    dealt = np.stack([assign_minibatches(key, jnp.int32(step), 7, 30) for step in range(8)])
    np.testing.assert_array_equal(np.sort(dealt, axis=1), np.tile(np.arange(30), (8, 1)))
    chosen = dealt < 7
    for epoch in (chosen[:4], chosen[4:]):
        assert (epoch.sum(axis=0) <= 1).all()
    assert (chosen[0] != chosen[4]).any()


@pytest.mark.parametrize("cuts_batches", [pytest.param(False, marks=pytest.mark.more), True])
def test_minibatch_step_equals_a_full_step_on_the_same_examples(problem, cuts_batches):
    params, corpus = problem
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    algorithm = descent(optimizer("sgd", 0.5), train=("E", "p"), batch_size=8, cuts_batches=cuts_batches)
    key, advance = jax.random.key(2), jax.jit(algorithm.step)
    state = algorithm.init(params, key)
    for step in range(7):
        (own,) = np.nonzero(np.asarray(assign_minibatches(key, jnp.int32(step), 8, 40)) < 8)
        alone = ja.data.from_sequences(
            [ids[k][mask[k]].tolist() for k in own], np.asarray(corpus.targets)[own].tolist(), vocab_size=20
        )
        expected = ja.dynamics.one_step(state.params, alone, step_size=0.5, train=("E", "p"))
        state, _ = advance(state, corpus)
        np.testing.assert_allclose(state.params.E, expected.E, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(state.params.p, expected.p, rtol=1e-12, atol=1e-14)


def test_sliced_and_weighted_minibatches_agree(problem):
    params, corpus = problem
    algorithms = [
        descent(
            optimizer("adam", 0.1),
            train=("E", "p", "v"),
            outputs=ja.models.two_layer.outputs,
            batch_size=8,
            cuts_batches=cuts,
        )
        for cuts in (True, False)
    ]
    one, other = (run(x, x.init(params, jax.random.key(0)), corpus, 7).params for x in algorithms)
    for name in ("E", "p", "v"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-11)


class Contrast(ja.Loss):
    """Minus the log of the share of positive sequences in the sum of exponentiated margins."""

    coupled = True

    def __call__(self, logits, labels):
        return jax.nn.logsumexp(logits) - jax.nn.logsumexp(jnp.where(labels > 0, logits, -jnp.inf))


@pytest.mark.more
def test_coupled_loss_receives_only_the_minibatch(problem):
    params, corpus = problem
    ids, mask = ja.models.reference.padded_sequences(corpus)
    phase = Descent(name="q", train=("E", "p"), optimizer="sgd", step_size=0.5, steps=5, batch_size=8)
    statistics = ja.data.token_statistics(corpus)
    task = ja.dynamics.Task(ja.models.OneLayer(dim=16), Contrast(), ja.data.Splits(corpus, statistics))
    key = jax.random.key(3)
    state = phase.init(task, params, key)

    def loss(params, own):
        tokens = params.E[ids[own]]
        scores = jnp.where(mask[own], tokens @ params.p, -jnp.inf)
        f = (jax.nn.softmax(scores, axis=1) * (tokens @ params.v)).sum(axis=1)
        positive = corpus.targets[own] > 0
        return -jnp.log((jnp.exp(f) * positive).sum() / jnp.exp(f).sum())

    expected = params
    for step in range(5):
        (own,) = np.nonzero(np.asarray(assign_minibatches(key, jnp.int32(step), 8, 40)) < 8)
        gradient = jax.grad(loss)(expected, own)
        expected = expected.replace(E=expected.E - 0.5 * gradient.E, p=expected.p - 0.5 * gradient.p)
    found = phase.advance(task, state, 5).params
    np.testing.assert_allclose(found.E, expected.E, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.p, expected.p, rtol=1e-10, atol=1e-12)


def test_batch_with_all_sequences_equals_full_batch(problem):
    params, corpus = problem
    algorithms = [
        descent(optimizer("adam", 0.1), train=("E", "p", "v"), batch_size=size) for size in (None, 99)
    ]
    one, other = (run(x, x.init(params, jax.random.key(0)), corpus, 5).params for x in algorithms)
    np.testing.assert_allclose(one.E, other.E, rtol=1e-10, atol=1e-12)


def test_descent_accepts_dict_parameters_and_a_custom_loss(problem):
    params, corpus = problem
    hinge = ja.losses.Hinge(smoothing=0.1)
    algorithm = descent(
        optimizer("sgd", 0.5),
        train=("E", "p"),
        outputs=lambda own, corpus: ja.models.one_layer.outputs(ja.models.one_layer.Params(**own), corpus),
        per_sequence=hinge,
    )
    got = run(algorithm, algorithm.init(vars(params)), corpus, 3).params
    settings = {"step_size": 0.5, "train": ("E", "p"), "per_sequence": hinge}
    step = jax.jit(lambda x: ja.dynamics.one_step(x, corpus, **settings))
    for _ in range(3):
        params = step(params)
    np.testing.assert_allclose(got["E"], params.E, rtol=1e-12)
    np.testing.assert_allclose(got["p"], params.p, rtol=1e-12)


def test_lbfgs_on_p_reaches_the_same_loss_as_scipy(problem):
    """L-BFGS on p reaches the same loss in 30 steps as SciPy's."""
    from scipy.optimize import minimize

    params, corpus = problem
    algorithm = descent(optax.lbfgs(), train=("p",))
    state = jax.jit(lambda state: run(algorithm, state, corpus, 30))(algorithm.init(params))

    def objective(p):
        moved = params.replace(p=jnp.asarray(p))
        return float(loss(moved, corpus)), np.asarray(gradients(moved, corpus).p)

    loss = jax.jit(ja.dynamics.loss)
    theirs = minimize(objective, params.p, jac=True, method="L-BFGS-B", options={"maxiter": 30}).fun
    assert float(loss(state.params, corpus)) < theirs + 0.01
    assert float(loss(state.params, corpus)) < float(loss(params, corpus)) - 0.02


def test_unknown_parameter_is_rejected(problem):
    params, _ = problem
    with pytest.raises(InputError, match="q: not a parameter of the model; known: E, p, v"):
        descent(optimizer("sgd", 0.1), train=("q",)).init(params)


@jax.jit
def step(params, corpus, step_size):
    return ja.dynamics.one_step(params, corpus, step_size=step_size)


@pytest.fixture
def wide_problem():
    corpus = ja.data.assumption1(jax.random.key(0), vocab_size=30, relevant=6, length=8, sequences=60)
    return ja.models.one_layer.init(jax.random.key(1), vocab_size=30, dim=2048), corpus


def test_one_step_moves_only_E_along_the_gradient(wide_problem):
    params, corpus = wide_problem
    moved = step(params, corpus, 10.0)
    gradient = gradients(params, corpus)
    np.testing.assert_allclose(moved.E, params.E - 10.0 * gradient.E, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(moved.p, params.p)
    np.testing.assert_array_equal(moved.v, params.v)


def test_one_step_adds_half_the_importance_to_the_values(wide_problem):
    params, corpus = wide_problem
    moved = step(params, corpus, 2e3)
    alpha = ja.data.average_signed_frequency(corpus)
    important = jnp.abs(alpha) > 0
    ratio = (moved.E @ params.v)[important] / (2e3 * alpha[important] / 2)
    np.testing.assert_allclose(ratio, 1, atol=0.1)


def test_one_step_can_train_other_parameters(wide_problem):
    params, corpus = wide_problem
    moved = jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=1.0, train=("p", "v")))(params)
    assert (moved.E == params.E).all()
    assert (moved.p != params.p).any()
    assert (moved.v != params.v).any()


def test_one_step_accepts_a_custom_loss(wide_problem):
    params, corpus = wide_problem
    exponential = ja.losses.Exponential()
    f = ja.models.one_layer.outputs(params, corpus)
    got, gradients = ja.dynamics.loss_and_gradients(params, corpus, ("p",), per_sequence=exponential)
    np.testing.assert_allclose(got, np.exp(-corpus.targets * np.asarray(f)).mean(), rtol=1e-6)
    moved = ja.dynamics.one_step(params, corpus, step_size=2.0, train=("p",), per_sequence=exponential)
    np.testing.assert_allclose(moved.p, params.p - 2 * gradients["p"], rtol=1e-5, atol=1e-7)

    def by_position(p):
        ids, mask = ja.models.reference.padded_sequences(corpus)
        return jnp.exp(-corpus.targets * ja.models.reference.outputs(params.replace(p=p), ids, mask)).mean()

    np.testing.assert_allclose(gradients["p"], jax.jit(jax.grad(by_position))(params.p), rtol=1e-3, atol=1e-7)


def test_one_step_accepts_dict_parameters(wide_problem):
    params, corpus = wide_problem
    logits = lambda own, corpus: ja.models.one_layer.outputs(ja.models.one_layer.Params(**own), corpus)  # noqa: E731
    moved = jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=3.0, outputs=logits))(vars(params))
    expected = step(params, corpus, 3.0)
    np.testing.assert_allclose(moved["E"], expected.E, rtol=1e-6, atol=1e-7)


SIZES = {"vocab_size": 60, "relevant": 10, "length": 6, "sequences": 40, "max_posterior_difference": 0.5}
STEPS, EVERY = 60, 5


@pytest.fixture
def overfitting(x64):
    """Return sixty tokens and forty sequences, on which training overfits."""
    train, held_out = (ja.data.independent(jax.random.key(seed), **SIZES) for seed in (0, 1))
    params = ja.models.one_layer.init(jax.random.key(2), vocab_size=60, dim=32, dtype=jnp.float64)
    return params, train, held_out


def by_hand(params, train, held_out, patience):
    """Compute the best parameters and the stopping step with an explicit loop."""
    algorithm = descent(optimizer("adam", 0.02), train=("E", "p", "v"))
    state = algorithm.init(params)
    take_step, loss_of = jax.jit(algorithm.step), jax.jit(loss)
    best, best_loss, waited = params, np.inf, 0
    for step in range(1, STEPS + 1):
        state, _ = take_step(state, train)
        if step % EVERY == 0 or step == STEPS:
            found = float(loss_of(state.params, held_out))
            waited = 0 if found < best_loss else waited + 1
            if found < best_loss:
                best, best_loss = state.params, found
        if waited >= patience:
            return best, step
    return best, STEPS


@pytest.mark.parametrize(
    "patience", [1, *(pytest.param(patience, marks=pytest.mark.more) for patience in (3, 100))]
)
def test_early_stop_ends_with_the_best_parameters(overfitting, patience):
    params, train, held_out = overfitting
    expected, gave_up = by_hand(params, train, held_out, patience)
    assert gave_up < STEPS or patience == 100
    inner = descent(optimizer("adam", 0.02), train=("E", "p", "v"))
    algorithm = early_stop(inner, steps=STEPS, every=EVERY, patience=patience)
    state = run(algorithm, algorithm.init(params), (train, held_out), STEPS)
    np.testing.assert_allclose(state.params.E, expected.E, rtol=1e-12)
    np.testing.assert_allclose(state.params.v, expected.v, rtol=1e-12)
    assert state.step == STEPS
    assert state.evaluations == gave_up
    # Before it stops, it is an ordinary descent.
    early = run(algorithm, algorithm.init(params), (train, held_out), EVERY - 1)
    np.testing.assert_allclose(early.params.E, run(inner, inner.init(params), train, EVERY - 1).params.E)


def test_vmapped_runs_stop_independently(overfitting):
    params, train, held_out = overfitting
    algorithm = early_stop(
        descent(optimizer("adam", 0.02), train=("E", "p", "v")), steps=STEPS, every=EVERY, patience=1
    )
    other = ja.models.one_layer.init(jax.random.key(7), vocab_size=60, dim=32, dtype=jnp.float64)
    both = jax.tree.map(lambda *x: jnp.stack(x), params, other)
    state = jax.vmap(lambda x: run(algorithm, algorithm.init(x), (train, held_out), STEPS))(both)
    for lane, one in enumerate((params, other)):
        alone = run(algorithm, algorithm.init(one), (train, held_out), STEPS)
        np.testing.assert_allclose(state.params.E[lane], alone.params.E, rtol=1e-10)
        assert state.evaluations[lane] == alone.evaluations == by_hand(one, train, held_out, 1)[1]


def test_advancing_several_steps_at_once_equals_single_steps(overfitting):
    params, train, held_out = overfitting
    inner = descent(optimizer("adam", 0.02), train=("E", "p", "v"))
    algorithm = early_stop(inner, steps=STEPS - 2, every=EVERY, patience=1)
    other = ja.models.one_layer.init(jax.random.key(7), vocab_size=60, dim=32, dtype=jnp.float64)
    both = jax.tree.map(lambda *x: jnp.stack(x), params, other)
    advance = jax.jit(jax.vmap(algorithm.advance, in_axes=(0, None, None)))
    state = jax.vmap(algorithm.init)(both)
    one_by_one = jax.jit(jax.vmap(lambda x: algorithm.step(x, (train, held_out))[0]))
    expected, done = state, 0
    for number in (7, 1, 0, 2, 21, STEPS - 2 - 31):
        state, done = advance(state, (train, held_out), number), done + number
        for _ in range(number):
            expected = one_by_one(expected)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-14), state, expected)
    assert done == int(state.step[0]) == STEPS - 2
    assert (state.waited == 1).any()


def test_held_out_loss_is_evaluated_only_between_blocks(overfitting):
    params, train, _ = overfitting
    held_out = ja.data.independent(jax.random.key(1), **SIZES | {"sequences": 30})
    looks = []

    def watched(logits, labels):
        jax.debug.callback(lambda _: looks.append(labels.size), logits.sum())
        return ja.losses.Logistic()(logits, labels)

    inner = descent(optimizer("sgd", 0.02), train=("p",), per_sequence=watched)
    algorithm = early_stop(inner, steps=STEPS, every=EVERY, patience=99, per_sequence=watched)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    advance = jax.jit(jax.vmap(algorithm.advance, in_axes=(0, None, None)))
    state = advance(jax.vmap(algorithm.init)(both), (train, held_out), 4 * EVERY)
    jax.block_until_ready(state)
    jax.effects_barrier()
    # Each of two vmapped runs evaluates the held-out loss four times in twenty steps.
    assert looks.count(30) == 2 * 4
    assert looks.count(40) >= 2 * 4 * EVERY


def test_early_stop_accepts_custom_parameters_and_loss(overfitting):
    params, train, held_out = overfitting
    squared = ja.losses.Squared()
    logits = lambda own, corpus: attend(corpus, own["scores"], own["values"])  # noqa: E731
    own = {"scores": params.E @ params.p, "values": params.E @ params.v}
    inner = descent(optimizer("sgd", 1.0), train=("values",), outputs=logits, per_sequence=squared)
    algorithm = early_stop(inner, steps=9, every=3, patience=9, outputs=logits, per_sequence=squared)
    state = run(algorithm, algorithm.init(own), (train, held_out), 9)
    assert state.best_loss.dtype == jnp.float64
    expected = ((held_out.targets - logits(state.params, held_out)) ** 2).mean() / 2
    np.testing.assert_allclose(state.best_loss, expected, rtol=1e-12)


def test_batch_size_above_the_number_of_examples_is_rejected(study):
    descent = {"name": "q", "kind": "descent", "train": ["p"], "optimizer": "sgd", "step_size": 0.1}
    study(phases=[descent | {"steps": 2, "batch_size": 30}])
    with pytest.raises(InputError, match=r"phases\[0\]: batch_size: 31 exceeds the 30 examples; use"):
        study(phases=[descent | {"steps": 2, "batch_size": 31}])
