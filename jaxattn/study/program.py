"""One phase of a study as compiled functions over many seeds."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.corpus import Corpus
from jaxattn.dynamics import Descent, descent, optimizer, run, schedule
from jaxattn.models import one_layer
from jaxattn.models.attention import LARGE
from jaxattn.study.config import OneStep, Phase, Sweep
from jaxattn.study.corpora import Loaded
from jaxattn.study.probes import Corpora, measure, probe_steps, token_columns
from jaxattn.theory import one_step_error


class Program(NamedTuple):
    """The compiled functions of a phase; states and results have a leading seed axis.

    Attributes:
        steps: length of the phase.
        probe_steps: steps to measure at, 0 and `steps` among them.
        init: params -> state.
        advance: (state, corpora, k) -> state after k more steps; the given state is consumed.
        measure: (params, corpora) -> metrics.
        law: (params before, params after, corpora) -> distance to the one-step law, None if no such phase.
        tokens: (params, corpora) -> columns of the token table.
    """

    steps: int
    probe_steps: list[int]
    init: Callable[..., Any]
    advance: Callable[..., Any]
    measure: Callable[..., dict[str, Array]]
    law: Callable[..., Array] | None
    tokens: Callable[..., dict[str, Array]]


def init_params(config: Sweep, corpus: Corpus, keys: Array) -> Any:
    """Draw the initial parameters of every seed."""

    def one(key: Array) -> Any:
        return one_layer.init(
            key,
            vocab_size=corpus.vocab_size,
            dim=config.model.dim,
            num_classes=corpus.num_classes,
            dtype=jnp.dtype(config.dtype),
        )

    return jax.jit(jax.vmap(one))(keys)


def program(config: Sweep, phase: Phase, loaded: Loaded) -> Program:
    """Make the compiled functions of a phase for the given corpora.

    Args:
        config: the cell's config.
        phase: one of its phases.
        loaded: corpora, shared by the seeds or one for each.

    Returns:
        The program; nothing is compiled before its first call.
    """
    algorithm = as_descent(phase)
    lift = partial(over_seeds, loaded=loaded)

    def advance(state: Any, corpora: Corpora, steps: Array) -> Any:
        return lift(lambda s, c: run(algorithm, s, c.train, steps))(state, corpora)

    def law(params: tuple[Any, Any], corpora: Corpora) -> Array:
        before, after = params
        return one_step_error((after.E - before.E) @ before.v, corpora.train, phase.step_size)

    follows_law = isinstance(phase, OneStep) and phase.train == ("E",)
    probe = partial(measure, train=phase.train, settings=config.probes)
    return Program(
        steps=(steps := 1 if isinstance(phase, OneStep) else phase.steps),
        probe_steps=probe_steps(steps, config.probes.per_decade),
        init=jax.jit(jax.vmap(algorithm.init)),
        advance=jax.jit(advance, donate_argnums=0),
        measure=jax.jit(lift(probe)),
        law=jax.jit(lift(law)) if follows_law else None,
        tokens=jax.jit(lift(token_columns)),
    )


def as_descent(phase: Phase) -> Descent:
    """Turn a phase into a descent; one step is a descent of one step."""
    if isinstance(phase, OneStep):
        return descent(optimizer("sgd", phase.step_size), train=phase.train)
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
    """Lift `function(state, corpora)` to states with a leading seed axis, in one compiled program.

    Seeds of small corpora are vmapped. On a large shared corpus they take turns: vmap would turn
    attention's choice of the cheap path into a selection that computes both.
    """
    if not (loaded.shared and loaded.corpora.train.bags.index.size >= LARGE):
        return jax.vmap(function, in_axes=(0, None if loaded.shared else 0))

    def in_turn(state: Any, corpora: Corpora) -> Any:
        if jax.tree.leaves(state)[0].shape[0] == 1:
            only = function(jax.tree.map(lambda x: x[0], state), corpora)
            return jax.tree.map(lambda x: x[None], only)
        return jax.lax.map(lambda s: function(s, corpora), state)

    return in_turn
