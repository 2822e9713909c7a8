import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.attention import attend
from jaxattn.dynamics import descent, early_stop, loss, optimizer, run

SIZES = {"vocab_size": 60, "relevant": 10, "length": 6, "sequences": 40, "max_posterior_difference": 0.5}
STEPS, EVERY = 60, 5


@pytest.fixture
def problem(x64):
    """Sixty tokens and forty sequences: training overfits."""
    train, held_out = (ja.data.independent(jax.random.key(seed), **SIZES) for seed in (0, 1))
    params = ja.models.one_layer.init(jax.random.key(2), vocab_size=60, dim=32, dtype=jnp.float64)
    return params, train, held_out


def by_hand(params, train, held_out, patience):
    """Write the rule out: the best parameters, and the step at which it gave up."""
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


@pytest.mark.parametrize("patience", [1, pytest.param(3, marks=pytest.mark.more), 100])
def test_it_ends_with_the_best_parameters(problem, patience):
    params, train, held_out = problem
    expected, gave_up = by_hand(params, train, held_out, patience)
    assert gave_up < STEPS or patience == 100
    inner = descent(optimizer("adam", 0.02), train=("E", "p", "v"))
    algorithm = early_stop(inner, steps=STEPS, every=EVERY, patience=patience)
    state = run(algorithm, algorithm.init(params), (train, held_out), STEPS)
    np.testing.assert_allclose(state.params.E, expected.E, rtol=1e-12)
    np.testing.assert_allclose(state.params.v, expected.v, rtol=1e-12)
    assert state.step == STEPS
    # Before it gives up it is an ordinary descent.
    early = run(algorithm, algorithm.init(params), (train, held_out), EVERY - 1)
    np.testing.assert_allclose(early.params.E, run(inner, inner.init(params), train, EVERY - 1).params.E)


def test_lanes_stop_on_their_own(problem):
    params, train, held_out = problem
    algorithm = early_stop(
        descent(optimizer("adam", 0.02), train=("E", "p", "v")), steps=STEPS, every=EVERY, patience=1
    )
    other = ja.models.one_layer.init(jax.random.key(7), vocab_size=60, dim=32, dtype=jnp.float64)
    both = jax.tree.map(lambda *x: jnp.stack(x), params, other)
    state = jax.vmap(lambda x: run(algorithm, algorithm.init(x), (train, held_out), STEPS))(both)
    for lane, one in enumerate((params, other)):
        alone = run(algorithm, algorithm.init(one), (train, held_out), STEPS)
        np.testing.assert_allclose(state.params.E[lane], alone.params.E, rtol=1e-10)


def test_many_steps_at_once_are_the_steps_one_by_one(problem):
    params, train, held_out = problem
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


def test_lanes_look_at_the_held_out_corpus_between_blocks_of_steps_alone(problem):
    params, train, _ = problem
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
    # Two lanes look four times each, and step twenty times.
    assert looks.count(30) == 2 * 4
    assert looks.count(40) >= 2 * 4 * EVERY


def test_parameters_of_any_names_may_be_watched_by_another_loss(problem):
    params, train, held_out = problem
    squared = ja.losses.Squared()
    logits = lambda own, corpus: attend(corpus, own["scores"], own["values"])  # noqa: E731
    own = {"scores": params.E @ params.p, "values": params.E @ params.v}
    inner = descent(optimizer("sgd", 1.0), train=("values",), outputs=logits, per_sequence=squared)
    algorithm = early_stop(inner, steps=9, every=3, patience=9, outputs=logits, per_sequence=squared)
    state = run(algorithm, algorithm.init(own), (train, held_out), 9)
    assert state.best_loss.dtype == jnp.float64
    expected = ((held_out.targets - logits(state.params, held_out)) ** 2).mean() / 2
    np.testing.assert_allclose(state.best_loss, expected, rtol=1e-12)
