"""One phase of a study as compiled functions over many seeds."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.corpus import Corpus
from jaxattn.dynamics import Descent, descent, log_descent, optimizer, run, schedule
from jaxattn.errors import InputError
from jaxattn.models import one_layer
from jaxattn.study import config, flow
from jaxattn.study.config import ExactFlow, LogDescent, OneStep, Phase, Sweep
from jaxattn.study.corpora import Loaded
from jaxattn.study.probes import Corpora, measure, probe_steps, token_columns
from jaxattn.theory import one_step_error


class Program(NamedTuple):
    """The compiled functions of a phase; states and results have a leading seed axis.

    A state holds at least `params` and `failed_at`, the step at which each seed failed or -1.

    Attributes:
        steps: length of the phase.
        probe_steps: steps to measure at, 0 and `steps` among them.
        init: (params, corpora) -> state.
        advance: (state, corpora, k) -> state after k more steps; the given state is consumed.
        measure: (state, corpora) -> metrics.
        query: state -> p in its full precision.
        law: (params before, params after, corpora) -> distance to the one-step law, None if no such phase.
        tokens: (params, corpora) -> columns of the token table.
        failure: what it means that a seed failed.
    """

    steps: int
    probe_steps: list[int]
    init: Callable[..., Any]
    advance: Callable[..., Any]
    measure: Callable[..., dict[str, Array]]
    query: Callable[[Any], Array]
    law: Callable[..., Array] | None
    tokens: Callable[..., dict[str, Array]]
    failure: str


def init_params(sweep: Sweep, corpus: Corpus, keys: Array) -> Any:
    """Draw the initial parameters of every seed."""

    def one(key: Array) -> Any:
        return one_layer.init(
            key,
            vocab_size=corpus.vocab_size,
            dim=sweep.model.dim,
            num_classes=corpus.num_classes,
            dtype=jnp.dtype(sweep.dtype),
        )

    return jax.jit(jax.vmap(one))(keys)


def program(sweep: Sweep, phase: Phase, loaded: Loaded) -> Program:
    """Make the compiled functions of a phase for the given corpora.

    Args:
        sweep: the cell's config.
        phase: one of its phases.
        loaded: corpora, shared by the seeds or one for each.

    Returns:
        The program; nothing is compiled before its first call.

    Raises:
        InputError: a phase that cannot run on these corpora.
    """
    classes = loaded.corpora.train.num_classes
    if isinstance(phase, ExactFlow | LogDescent) and classes != 2:
        raise InputError(
            f"phases.{phase.name}: {classes} classes, but this is the flow of the logistic loss of two; "
            "use kind = 'descent'"
        )
    lift = partial(over_seeds, loaded=loaded)
    probe = jax.jit(lift(partial(measure, train=phase.train, settings=sweep.probes)))
    tokens = jax.jit(lift(token_columns))
    if isinstance(phase, ExactFlow):
        return Program(
            steps=phase.steps,
            probe_steps=list(range(phase.points)),
            init=partial(flow.init, phase),
            advance=flow.advance,
            measure=lambda state, corpora: probe(state.params, corpora) | flow.measure(state),
            query=flow.query,
            law=None,
            tokens=tokens,
            failure="the flow met NaN or a step too short to represent",
        )
    algorithm = as_descent(phase)

    def advance(state: Any, corpora: Corpora, steps: Array) -> Any:
        return lift(lambda s, c: run(algorithm, s, c.train, steps))(state, corpora)

    def law(params: tuple[Any, Any], corpora: Corpora) -> Array:
        before, after = params
        return one_step_error((after.E - before.E) @ before.v, corpora.train, phase.step_size)

    follows_law = isinstance(phase, OneStep) and phase.train == ("E",)
    init = jax.jit(jax.vmap(algorithm.init))
    return Program(
        steps=(steps := 1 if isinstance(phase, OneStep) else phase.steps),
        probe_steps=probe_steps(steps, sweep.probes.per_decade),
        init=lambda params, corpora: init(params),
        advance=jax.jit(advance, donate_argnums=0),
        measure=lambda state, corpora: probe(state.params, corpora) | {"evaluations": state.step},
        query=lambda state: state.params.p,
        law=jax.jit(lift(law)) if follows_law else None,
        tokens=tokens,
        failure="loss or gradient is not finite",
    )


def as_descent(phase: config.OneStep | config.LogDescent | config.Descent) -> Descent:
    """Turn a phase into a descent; one step is a descent of one step."""
    match phase:
        case OneStep():
            return descent(optimizer("sgd", phase.step_size), train=phase.train)
        case LogDescent():
            return log_descent(phase.method, phase.step_size)
    # A Polyak step takes the largest step size as a number, the others follow the schedule.
    step_size = (
        phase.step_size
        if phase.optimizer == "polyak"
        else schedule(phase.schedule, phase.step_size, phase.steps, phase.warmup)
    )
    made = optimizer(
        phase.optimizer,
        step_size,
        momentum=phase.momentum,
        loss_floor=phase.loss_floor,
        epsilon=phase.epsilon,
    )
    return descent(made, train=phase.train)


def over_seeds(function: Callable[[Any, Corpora], Any], loaded: Loaded) -> Callable[[Any, Corpora], Any]:
    """Lift `function(state, corpora)` to states with a leading seed axis, in one compiled program."""
    return jax.vmap(function, in_axes=(0, None if loaded.shared else 0))
