"""Phases as settings: steps at which they are measured, and equality of split advances."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.base import Phase, log_spaced
from jaxattn.lab import kinds


def test_probe_steps_are_log_spaced_and_include_both_ends():
    steps = log_spaced(1000, 4)
    assert steps[0] == 0
    assert steps[-1] == 1000
    assert {1, 10, 100} <= set(steps)
    assert len(steps) == 14
    assert log_spaced(1, 8) == [0, 1]
    assert log_spaced(2, 8) == [0, 1, 2]


PHASES = kinds.classes(kinds.PHASES)
KINDS = {
    "one_step": {"step_size": 5.0},
    "descent": {"train": ["E", "p"], "optimizer": "adam", "step_size": 0.1, "steps": 5, "batch_size": 4},
    "log_descent": {"method": "log_time", "step_size": 0.1, "steps": 5},
    "exact_flow": {"until_norm": 50.0, "points": 6},
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind == "descent" else pytest.mark.more) for kind in KINDS],
)
def test_advancing_step_by_step_equals_advancing_all_steps_at_once(kind, task, params):
    phase = msgspec.convert({"name": "it"} | KINDS[kind], PHASES[kind])
    key = jax.random.key(2)
    start = jax.jit(lambda params: phase.init(task, params, key))(params)
    advance = jax.jit(lambda state, steps: phase.advance(task, state, steps))
    whole = advance(start, phase.steps)
    parts = start
    for _ in range(phase.steps):
        parts = advance(parts, 1)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(whole.step) == phase.steps
    assert int(whole.failed_at) == -1
    assert phase.probe_steps(8)[-1] == phase.steps
    moved = {name for name in ("E", "p", "v") if (getattr(whole.params, name) != getattr(params, name)).any()}
    assert moved == set(phase.train)


def test_custom_phase_requires_only_step(task, params):
    class Shrink(Phase, frozen=True, kw_only=True):
        train: tuple[str, ...] = ("p",)
        rate: float
        steps: int = 3

        def step(self, task, state):
            return state.replace(params=state.params.replace(p=self.rate * state.params.p))

    phase = Shrink(name="own", rate=0.5)
    state = phase.advance(task, phase.init(task, params, jax.random.key(0)), 3)
    np.testing.assert_array_equal(state.params.p, params.p / 8)
    np.testing.assert_array_equal(phase.parameter(state, "p"), params.p / 8)
    assert phase.metrics(state) == {"evaluations": 3}
    with pytest.raises(NotImplementedError, match=r"Bare\.step"):
        type("Bare", (Phase,), {"steps": 1}, frozen=True, kw_only=True)(name="b").step(task, state)


class Own(NamedTuple):
    """State of a custom phase that is not a dataclass."""

    params: object
    step: jax.Array
    failed_at: jax.Array
    seen: jax.Array


@pytest.mark.parametrize("counted", [0, 1, 7])
def test_advance_counts_the_steps_of_a_custom_phase(task, params, counted):
    class Numbers(Phase, frozen=True, kw_only=True):
        """A phase that records the number of each step, and counts by another number."""

        train: tuple[str, ...] = ("p",)
        steps: int = 6

        def init(self, task, params, key):
            zero = jnp.zeros((), jnp.int32)
            return Own(params, zero, zero - 1, jnp.full(6, -1))

        def step(self, task, state):
            # Two fields are the same array, as in a phase that fails in each step.
            seen = state.seen.at[state.step].set(state.step)
            return state._replace(step=state.step + counted, failed_at=state.step, seen=seen)

    phase = Numbers(name="numbers")
    start = phase.init(task, params, jax.random.key(0))
    for parts in ([6], [1, 2, 3]):
        state = start
        for steps in parts:
            state = jax.jit(lambda state, steps: phase.advance(task, state, steps))(state, steps)
        assert state.seen.tolist() == list(range(6))
        assert (int(state.step), int(state.failed_at)) == (6, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {"kind": "two_layer", "dim": 8}},
            "requires (model.kind = 'one_layer'|scores .* linear in 'p'.*this model has none)",
        ),
        ({"loss": "hinge"}, "requires the logistic loss without label smoothing"),
        (
            {"loss": {"kind": "classification", "smoothing": 0.1}},
            "requires the logistic loss without label smoothing",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["exact_flow", "log_descent"])
def test_theory_phases_reject_unsupported_models_and_losses(study, kind, changes, message):
    phase = {"name": "flow", "kind": kind} | (KINDS[kind] if kind == "log_descent" else {})
    with pytest.raises(ja.InputError, match=rf"phases\[0\]: .*{message}"):
        study(phases=[phase], **changes)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("one_step", {"step_size": -1.0}),
        ("one_step", {}),
        ("descent", {"train": [], "optimizer": "sgd", "step_size": 0.1, "steps": 3}),
        ("log_descent", {"method": "newton", "step_size": 0.1, "steps": 3}),
        ("exact_flow", {"points": 2}),
        ("exact_flow", {"rtol": 1.5}),
        ("exact_flow", {"train": ["p"]}),
    ],
)
def test_invalid_phase_settings_are_rejected(kind, settings):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "it"} | settings, PHASES[kind])
