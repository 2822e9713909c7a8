"""What a study does to one seed, on one page: pure functions, which the engine lifts over seeds.

A seed has two keys, one for its corpora and one for its parameters, that depend on nothing but its number.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.base import DrawnData, Probe, SharedData, Task
from jaxattn.data.splits import Splits
from jaxattn.errors import InputError
from jaxattn.probes.importance import token_columns
from jaxattn.probes.seen import Seen
from jaxattn.study.setting import Setting
from jaxattn.trees import get, replaced

# Measurements by name, by the number of their probe.
Measured = dict[int, Mapping[str, Array]]


class Carried(NamedTuple):
    """What a phase carries: the state of its dynamics, and what its probes remember of its start."""

    state: Any
    memory: dict[int, Any]


def keys(seed: int | Array) -> tuple[Array, Array]:
    """Make the keys of a seed's data and of its parameters."""
    data_key, model_key = jax.random.split(jax.random.fold_in(jax.random.key(0), seed))
    return data_key, model_key


def drawn(setting: Setting) -> DrawnData:
    """Look up the data of a setting whose seeds have corpora of their own."""
    assert isinstance(setting.data, DrawnData)
    return setting.data


def draw(setting: Setting, key: Array, used: Array | None = None) -> Splits:
    """Draw the corpora of a seed; of a padded vocabulary only the first tokens are used."""
    data = drawn(setting)
    return data.draw(key) if used is None else data.draw(key, used)


def start(
    setting: Setting, corpora: Splits, key: Array, tokens: Sequence[str], used: Array | None = None
) -> Any:
    """Draw the parameters; tokens that a padded vocabulary does not use have rows of zeros."""
    train = corpora.train
    dtype = jnp.dtype(setting.dtype)
    params = setting.model.init(key, train, dtype=dtype)
    for name, begin_at in setting.starts.items():
        own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
        params = replaced(params, **{name: begin_at(own_key, get(params, name), tokens)})
    if used is None:
        return params
    for name in setting.model.token_rows:
        rows = get(params, name)
        is_used = jnp.arange(train.vocab_size).reshape(-1, *(1,) * (rows.ndim - 1)) < used
        params = replaced(params, **{name: jnp.where(is_used, rows, 0)})
    return params


def begin(setting: Setting, index: int, params: Any, corpora: Splits, key: Array) -> Carried:
    """Begin a phase."""
    phase = setting.phases[index]
    task = Task(setting.model, setting.loss, corpora)
    memory = {
        number: kept
        for number, probe in probes(setting, index).items()
        if (kept := probe.remember(params)) is not None
    }
    return Carried(phase.init(task, params, jax.random.fold_in(key, index)), memory)


def advance(setting: Setting, index: int, carried: Carried, corpora: Splits, steps: int | Array) -> Carried:
    """Take steps of a phase; one call with k + l steps equals two with k and l."""
    task = Task(setting.model, setting.loss, corpora)
    return carried._replace(state=setting.phases[index].advance(task, carried.state, steps))


def measure(setting: Setting, index: int, carried: Carried, corpora: Splits) -> Measured:
    """Measure by every probe, given by its number: numbers, and vectors (m,)."""
    seen = look(setting, index, carried.state.params, corpora)
    found = {
        number: probe.measure(seen.with_memory(carried.memory.get(number)))
        for number, probe in probes(setting, index).items()
    }
    names = [name for metrics in found.values() for name in metrics]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"probes: two probes measure {name!r}; give one of them another name")
    return found


def merged(setting: Setting, found: Mapping[int, Mapping[str, Any]], step: int) -> dict[str, Any]:
    """Put the measurements of all probes together, without those that do not speak of this step yet."""
    every = setting.probes.at_steps
    return {
        name: x
        for number, metrics in found.items()
        if step >= every[number].from_step
        for name, x in metrics.items()
    }


def probes(setting: Setting, index: int) -> dict[int, Probe]:
    """List the probes of single steps that look at a phase, by number."""
    every = enumerate(setting.probes.at_steps)
    context = setting.model, setting.loss, setting.phases[index]
    return {k: probe for k, probe in every if probe.applies(*context)}


def look(setting: Setting, index: int, params: Any, corpora: Splits) -> Seen:
    """Show parameters to probes."""
    return Seen(params, setting.model, setting.loss, corpora, setting.phases[index])


def columns(setting: Setting, index: int, params: Any, corpora: Splits) -> dict[str, Array]:
    """Collect the token table at the end of a phase; empty for a model without scores and values."""
    if not setting.model.has_scores:
        return {}
    return token_columns(look(setting, index, params, corpora))


def run(setting: Setting, seed: int) -> Iterator[tuple[str, int, dict[str, Array]]]:
    """Run one seed from its start to its end: yield phase, step and measurements at every probe step."""
    data_key, key = keys(seed)
    if isinstance(setting.data, SharedData):
        corpora, _, tokens = setting.data.load()
    else:
        corpora, tokens = draw(setting, data_key), setting.data.tokens
    params = start(setting, corpora, key, tokens)
    for index, phase in enumerate(setting.phases):
        carried, done = begin(setting, index, params, corpora, key), 0
        for step in setting.probes.steps_of(phase):
            carried = advance(setting, index, carried, corpora, step - done)
            found = merged(setting, measure(setting, index, carried, corpora), step)
            yield phase.name, step, found | phase.metrics(carried.state)
            done = step
        params = carried.state.params
