"""Pure functions that compute a study for a single seed. The engine vmaps them over many seeds.

The PRNG keys of a seed come from `randomness.keys`.
"""

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.base import (
    Data,
    Dataset,
    DrawnData,
    Params,
    PhaseProbe,
    Probe,
    Progress,
    SharedData,
    Task,
    silent,
)
from jaxattn.base.from_function import FromFunction
from jaxattn.base.probe import ProbeContext
from jaxattn.core import backend
from jaxattn.core.errors import InputError, at
from jaxattn.core.pytrees import get, replace
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Loaded, Splits
from jaxattn.dynamics.descents.descent import assign_minibatches
from jaxattn.lab.probes.importance import token_columns
from jaxattn.lab.probes.requirements import require_token_scores
from jaxattn.lab.study.code_hash import Unhashable, code_hash
from jaxattn.lab.study.randomness import HELD_AT, keys
from jaxattn.lab.study.registry import marked_settings
from jaxattn.lab.study.setting import VOCAB_SIZE, Hyperparameters, Setting, numbers_of, with_numbers

# Metrics of all probes, keyed by probe index and then by metric name.
ProbeMetrics = dict[int, Mapping[str, Array]]


class Carried(NamedTuple):
    """State of a phase: the state of its dynamics, and the values that probes stored at its start."""

    state: Any
    memory: dict[int, Any]


def sampled_data(setting: Setting) -> DrawnData:
    """Return the data settings of `setting`, which must sample its data separately for each seed."""
    assert isinstance(setting.data, DrawnData)
    return setting.data


def draw_data(setting: Setting, key: Array) -> Splits:
    """Sample the data for a seed. If the vocabulary is padded, the padding tokens never occur."""
    made = sampled_data(setting)
    return made.draw(key) if setting.used is None else made.draw(key, setting.used)


def initial_params(setting: Setting, data: Splits, key: Array, tokens: Sequence[str]) -> Any:
    """Return the initial parameters. Rows for padding tokens are zero."""
    train = data.train
    dtype = jnp.dtype(setting.dtype)
    params = setting.model.init(key, train, dtype=dtype)
    for name, initial in setting.starts.items():
        own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
        params = replace(params, **{name: initial(own_key, get(params, name), tokens)})
    if setting.used is None:
        return params
    for name in setting.model.token_rows:
        rows = get(params, name)
        is_used = jnp.arange(train.vocab_size).reshape(-1, *(1,) * (rows.ndim - 1)) < setting.used
        params = replace(params, **{name: jnp.where(is_used, rows, 0)})
    return params


def task_of(setting: Setting, data: Splits) -> Task:
    """Return the task on which a phase trains: the model, the loss and the data."""

    def fresh(key: Array, examples: int) -> Dataset:
        shared = {} if data.task_key is None else {"task_key": jax.random.wrap_key_data(data.task_key)}
        return setting.data.batch(key, examples, setting.used, **shared)

    return Task(setting.model, setting.loss, data, fresh if setting.data.draws_batches else None)


def begin_phase(setting: Setting, index: int, params: Params, data: Splits, key: Array) -> Carried:
    """Return the state at the start of a phase."""
    task = task_of(setting, data)
    memory = {
        number: kept
        for number, probe in probes(setting, index, data).items()
        if (kept := probe.remember(params)) is not None
    }
    return Carried(setting.phases[index].init(task, params, jax.random.fold_in(key, index)), memory)


def advance(setting: Setting, index: int, carried: Carried, data: Splits, steps: int | Array) -> Carried:
    """Advance a phase by `steps` steps. Advancing by k and then by l steps equals advancing by k + l."""
    task = task_of(setting, data)
    return carried._replace(state=setting.phases[index].advance(task, carried.state, steps))


def measure_probes(setting: Setting, index: int, carried: Carried, data: Splits) -> ProbeMetrics:
    """Evaluate the probes, and return a dictionary from each probe's index to its metrics, keyed by name.

    Each metric is a scalar or a vector (m,).
    """
    context = probe_context(setting, index, carried.state.params, data)
    found = {
        number: probe.measure(context.with_memory(carried.memory.get(number)))
        for number, probe in probes(setting, index, data).items()
    }
    names = [name for metrics in found.values() for name in metrics]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"probes: two probes measure {name!r}; rename one of the metrics")
    return found


def merged_metrics(setting: Setting, found: Mapping[int, Mapping[str, Any]], step: int) -> dict[str, Any]:
    """Merge the metrics of all probes into one dictionary, except for probes that start after `step`."""
    every = setting.probes.at_steps
    return {
        name: x
        for number, metrics in found.items()
        if step >= every[number].from_step
        for name, x in metrics.items()
    }


def probes(setting: Setting, index: int, data: Splits) -> dict[int, Probe]:
    """Return the step probes that apply to a phase, by probe index."""
    task, phase = task_of(setting, data), setting.phases[index]
    return {k: probe for k, probe in enumerate(setting.probes.at_steps) if not probe.skip_reason(task, phase)}


def phase_probes(setting: Setting, index: int, data: Splits) -> list[PhaseProbe]:
    """Return the phase probes that apply to a phase. `data` may be for one seed or for many seeds."""
    task, phase = task_of(setting, data), setting.phases[index]
    return [probe for probe in setting.probes.of_phases if not probe.skip_reason(task, phase)]


def probe_context(setting: Setting, index: int, params: Params, data: Splits) -> ProbeContext:
    """Build the context in which probes measure `params`."""
    phase, sample = setting.phases[index], setting.probes.sample
    return ProbeContext(params, task_of(setting, data), phase, sample=sample)


def columns(setting: Setting, index: int, params: Params, data: Splits) -> dict[str, Array]:
    """Return the token table at the end of a phase, or {} if the model lacks token scores and values."""
    if require_token_scores(task_of(setting, data)):
        return {}
    return token_columns(probe_context(setting, index, params, data))


def run_seed(setting: Setting, seed: int) -> Iterator[tuple[str, int, dict[str, Array]]]:
    """Run one seed from start to finish; yield the phase, step and metrics at every probe step."""
    data_key, start_key, batches_key = keys(seed, setting.hold)
    if isinstance(setting.data, SharedData):
        data, _, tokens = setting.data.load()
    else:
        data, tokens = draw_data(setting, data_key), setting.data.tokens
    params = initial_params(setting, data, start_key, tokens)
    for index, step, carried in states(setting, params, data, batches_key):
        found = merged_metrics(setting, measure_probes(setting, index, carried, data), step)
        phase = setting.phases[index]
        yield phase.name, step, found | phase.metrics(carried.state)


def states(
    setting: Setting, params: Params, data: Splits, key: Array, compiled: bool = False
) -> Iterator[tuple[int, int, Carried]]:
    """Train one seed from its initial parameters; yield the phase index, step and state at every probe step.

    Args:
        setting: the setting of a cell.
        params: the initial parameters.
        data: the data of the seed.
        key: the key for minibatches, `keys(seed).batches`.
        compiled: True to compile the steps of each phase.
    """
    for index, phase in enumerate(setting.phases):
        step_by: Callable[..., Carried] = partial(advance, setting, index)
        move = jax.jit(step_by) if compiled else step_by
        carried, done = begin_phase(setting, index, params, data, key), 0
        for step in setting.probes.steps_of(phase):
            carried = move(carried, data, step - done)
            yield index, step, carried
            done = step
        params = carried.state.params


def parameters_at_steps(setting: Setting, seed: int, loaded: Loaded) -> Iterator[tuple[str, int, Params]]:
    """Train one seed again; yield the phase, step and parameters at every probe step."""
    with backend.precision(setting.dtype):
        start = jax.jit(lambda data, key: initial_params(setting, data, key, loaded.tokens))
        every = keys(seed, setting.hold)
        params = start(loaded.splits, every.start)
        trained = states(setting, params, loaded.splits, every.batches, compiled=True)
    while True:
        with backend.precision(setting.dtype):
            found = next(trained, None)
        if found is None:
            return
        index, step, carried = found
        yield setting.phases[index].name, step, carried.state.params


def minibatches(setting: Setting, index: int, seed: int, examples: int) -> np.ndarray:
    """Return the training examples of every step of a phase for one seed, (steps, B) int, ascending.

    Args:
        setting: the setting of a cell.
        index: index of the phase.
        seed: the seed.
        examples: number of training examples.

    Raises:
        InputError: the phase does not use minibatches.
    """
    phase = setting.phases[index]
    size = phase.batch_size
    if size is None:
        raise InputError(f"phase {phase.name}: uses all training examples in every step; set batch_size")
    size, steps = min(size, examples), int(phase.probe_steps(1)[-1])
    with backend.pinned():
        key = jax.random.fold_in(keys(seed, setting.hold).batches, index)
        position = jax.lax.map(
            lambda step: assign_minibatches(key, step, size, examples), jnp.arange(steps, dtype=jnp.int32)
        )
    return np.nonzero(np.asarray(position) < size)[1].reshape(steps, size)


def seed_dataset(
    data: Data,
    seed: int,
    dtype: str,
    progress: Progress = silent,
    hold: Collection[str] = (),
) -> Loaded:
    """Return the data for one seed, or the data shared by all seeds, with the token names.

    Args:
        data: data settings.
        seed: the seed; ignored if all seeds share the data, or if `hold` contains "data".
        dtype: dtype of the study, "float32" or "float64".
        progress: progress callback for loading data.
        hold: sources of randomness for which seed 0 replaces the seed.

    Raises:
        InputError: the data cannot be read.
    """
    with backend.precision(dtype):
        if isinstance(data, SharedData):
            return data.load(progress)

        # As in a run, numeric settings are arguments of the program, because constants may round differently.
        numbers = {path: jnp.asarray(x) for path, x in numbers_of(data)}
        if data.pads_vocabulary and data.vocab_size is not None:
            numbers[VOCAB_SIZE[1:]] = jnp.int32(data.vocab_size)
        try:
            draw = _drawing(data, _version(data))
        except (TypeError, Unhashable, OSError, InputError):
            # Some settings, such as dictionaries, are not hashable, and some code is not.
            draw = _drawing.__wrapped__(data)
        splits = draw(jnp.uint32(HELD_AT if "data" in hold else seed), numbers)
    return Loaded(splits, False, data.tokens)


def _version(data: DrawnData) -> str:
    """Return a hash of custom code and of the values that it reads; "" for data of this package.

    Raises:
        Unhashable: the code reads a file that a setting names, or a value that cannot be hashed.
        OSError, InputError: the file of the code cannot be read, or has changed since it was imported.
    """
    if type(data).__module__.startswith("jaxattn."):
        return ""
    if marked_settings(type(data)):
        raise Unhashable("the contents of a file")
    return code_hash(type(data).function if isinstance(data, FromFunction) else type(data))


@lru_cache(maxsize=8)
def _drawing(data: DrawnData, version: str = "") -> Callable[[Array, Hyperparameters], Splits]:

    def draw(seed: Array, numbers: Hyperparameters) -> Splits:
        key, used = keys(seed).data, numbers.get(VOCAB_SIZE[1:])
        made = with_numbers(data, {path: x for path, x in numbers.items() if path != VOCAB_SIZE[1:]})
        return made.draw(key) if used is None else made.draw(key, used)

    return jax.jit(draw)


def check_data(loaded: Loaded) -> None:
    """Raise InputError if the data contain non-finite numbers or fail `Dataset.check`."""
    for name in ("train", "test", "validation"):
        data = getattr(loaded.splits, name)
        if data is None:
            continue
        with at(f"data: {name}"):
            _check_finite(data)
            if loaded.shared or isinstance(data, Corpus):
                data.check()
            else:
                held = jax.device_get(data)
                for number in range(len(held.targets)):
                    jax.tree.map(lambda x, number=number: x[number], held).check()


def _check_finite(data: Dataset) -> None:
    for name, x in data.arrays():
        if jnp.issubdtype(x.dtype, jnp.floating) and not (finite := np.isfinite(np.asarray(x))).all():
            location = tuple(int(k) for k in np.argwhere(~finite)[0])
            raise InputError(
                f"{name} contains {float(np.asarray(x)[location])} at {location}; remove or replace it"
            )
