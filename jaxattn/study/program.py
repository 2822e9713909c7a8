"""One phase of a study as compiled functions over many seeds."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.dynamics import Descent, descent, early_stop, log_descent, optimizer, run, schedule
from jaxattn.errors import InputError
from jaxattn.study import config, flow
from jaxattn.study.config import ExactFlow, LogDescent, OneStep, Sweep
from jaxattn.study.corpora import Loaded
from jaxattn.study.devices import dealt, over_lanes
from jaxattn.study.groups import Numbers, put
from jaxattn.study.models import Model, model
from jaxattn.study.probes import Corpora, measure, probe_steps, token_columns
from jaxattn.theory import one_step_error


class Program(NamedTuple):
    """The compiled functions of a phase; all arrays have a leading lane axis, but for shared corpora.

    A state holds at least `params` and `failed_at`, the step at which each lane failed or -1.

    Attributes:
        steps: length of the phase.
        probe_steps: steps to measure at, 0 and `steps` among them.
        init: (params, corpora, numbers, keys) -> state; the keys are for what is drawn on the way.
        advance: (state, corpora, numbers, k) -> state after k more steps; the given state is consumed.
        measure: (state, corpora) -> metrics.
        query: state -> p in its full precision.
        values: params -> E v, which the law is about; None if no such phase.
        law: (E v before, params after, corpora, numbers) -> distance to the one-step law, None if no such
            phase.
        tokens: (params, corpora) -> columns of the token table.
        failure: what it means that a lane failed.
    """

    steps: int
    probe_steps: list[int]
    init: Callable[..., Any]
    advance: Callable[..., Any]
    measure: Callable[..., dict[str, Array]]
    query: Callable[[Any], Array]
    values: Callable[[Any], Array] | None
    law: Callable[..., Array] | None
    tokens: Callable[..., dict[str, Array]]
    failure: str


def init_params(sweep: Sweep, loaded: Loaded, keys: Array, numbers: Numbers) -> Any:
    """Draw the initial parameters of every lane; tokens that a lane does not use have rows of zeros."""
    corpus = loaded.corpora.train

    def one(key: Array, numbers: Numbers) -> Any:
        params = model(sweep.model).init(
            key,
            vocab_size=corpus.vocab_size,
            dim=sweep.model.dim,
            num_classes=corpus.num_classes,
            dtype=jnp.dtype(sweep.dtype),
        )
        used = numbers.get(("data", "vocab_size"), corpus.vocab_size)
        return params.replace(E=jnp.where(jnp.arange(corpus.vocab_size)[:, None] < used, params.E, 0))

    return jax.jit(over_lanes(one, (0, 0), loaded.shared))(keys, numbers)


def program(sweep: Sweep, index: int, loaded: Loaded) -> Program:
    """Make the compiled functions of a phase for the given corpora.

    Args:
        sweep: what the cells of a group have in common.
        index: which of its phases.
        loaded: corpora, shared by the lanes or one for each.

    Returns:
        The program; nothing is compiled before its first call.

    Raises:
        InputError: a phase that cannot run on these corpora.
    """
    phase = sweep.phases[index]
    classes = loaded.corpora.train.num_classes
    if isinstance(phase, ExactFlow | LogDescent) and classes != 2:
        raise InputError(
            f"phases.{phase.name}: {classes} classes, but this is the flow of the logistic loss of two; "
            "use kind = 'descent'"
        )
    on_corpora = None if loaded.shared else 0
    lift, deal = (partial(how, shared=loaded.shared) for how in (over_lanes, dealt))
    of_model = model(sweep.model)
    look_at = partial(measure, train=phase.train, settings=sweep.probes, model=of_model)
    probe = jax.jit(lift(look_at, (0, on_corpora)))
    tokens = jax.jit(lift(partial(token_columns, model=of_model), (0, on_corpora)))
    if isinstance(phase, ExactFlow):
        begin = _in_float64(deal(partial(flow.init, phase), (0, on_corpora)))
        move = _in_float64(deal(flow.advance, (0, None)))
        look = _in_float64(deal(flow.measure, (0,)))
        return Program(
            steps=phase.steps,
            probe_steps=list(range(phase.points)),
            init=lambda params, corpora, *_: begin(params, corpora),
            advance=lambda state, corpora, _, rows: move(state, rows),
            measure=lambda state, corpora: probe(state.params, corpora) | look(state),
            query=_in_float64(deal(flow.query, (0,))),
            values=None,
            law=None,
            tokens=tokens,
            failure="the flow met NaN or a step too short to represent",
        )
    place = f"phases.{index}"

    stops_early = isinstance(phase, config.Descent) and phase.patience > 0

    def init(params: Any, numbers: Numbers, key: Array) -> Any:
        moving = as_descent(put(phase, place, numbers), of_model)
        batches = isinstance(phase, config.Descent) and phase.batch_size is not None
        return moving.init(params, jax.random.fold_in(key, index)) if batches else moving.init(params)

    def advance(state: Any, corpora: Corpora, numbers: Numbers, steps: Array) -> Any:
        on = (corpora.train, corpora.validation) if stops_early else corpora.train
        return run(as_descent(put(phase, place, numbers), of_model), state, on, steps)

    def values(params: Any) -> Array:
        return params.E @ params.v

    def law(before: Array, after: Any, corpora: Corpora, numbers: Numbers) -> Array:
        return one_step_error(values(after) - before, corpora.train, put(phase, place, numbers).step_size)

    follows_law = (
        isinstance(phase, OneStep) and phase.train == ("E",) and isinstance(sweep.model, config.OneLayer)
    )
    return Program(
        steps=(steps := 1 if isinstance(phase, OneStep) else phase.steps),
        probe_steps=probe_steps(steps, sweep.probes.per_decade),
        init=jax.jit(lambda params, corpora, *own: lift(init, (0, 0, 0))(params, *own)),
        advance=jax.jit(lift(advance, (0, on_corpora, 0, None)), donate_argnums=0),
        measure=jax.jit(lambda state, corpora: probe(state.params, corpora) | {"evaluations": state.step}),
        query=lambda state: state.params.p,
        values=jax.jit(lift(values, (0,))) if follows_law else None,
        law=jax.jit(lift(law, (0, 0, on_corpora, 0))) if follows_law else None,
        tokens=tokens,
        failure="loss or gradient is not finite",
    )


def as_descent(phase: config.OneStep | config.LogDescent | config.Descent, of_model: Model) -> Descent:
    """Turn a phase, whose numbers may be traced, into a descent; one step is a descent of one step."""
    match phase:
        case OneStep():
            return descent(optimizer("sgd", phase.step_size), train=phase.train, logits=of_model.logits)
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
    moving = descent(made, train=phase.train, logits=of_model.logits, batch_size=phase.batch_size)
    if not phase.patience:
        return moving
    return early_stop(
        moving,
        steps=phase.steps,
        every=phase.check_every,
        patience=phase.patience,
        logits=of_model.logits,
    )


def _in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of the exact flow, which is float64 in every study."""
    compiled = jax.jit(function)

    def call(*arguments: Any) -> Any:
        with jax.enable_x64(True):
            return compiled(*arguments)

    return call
