"""How much memory a unit will need, from two compiled probes instead of a rule of thumb."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxattn.study import corpora
from jaxattn.study.config import Sweep
from jaxattn.study.corpora import Loaded
from jaxattn.study.program import init_params, program


class Memory(NamedTuple):
    """What a unit needs at its largest moment, in bytes: `base + seeds · per_seed`."""

    base: int
    per_seed: int

    def of(self, seeds: int) -> int:
        """Predict the memory of some seeds together."""
        return self.base + seeds * self.per_seed


def predict(sweep: Sweep) -> Memory:
    """Predict the memory of a cell with synthetic data: it is linear in the seeds that run together.

    Every phase is compiled, not run, for two seeds and for four, and XLA tells what the programs need. One
    seed would not do: a loop over a single seed is no loop, and has no buffers of its own.

    Args:
        sweep: the cell's config.

    Returns:
        The prediction, of the phase that needs most.

    Raises:
        InputError: sizes that do not fit.
    """
    two, four = peak(sweep, 2), peak(sweep, 4)
    return Memory(base=max(0, 2 * two - four), per_seed=max(four - two, 0) // 2)


def peak(sweep: Sweep, seeds: int) -> int:
    """Compile every phase for some seeds and return what the largest program holds at once, in bytes.

    That is arguments, results and temporaries: parameters, optimiser, corpora, paths and gradients.
    """
    with jax.enable_x64(sweep.dtype == "float64"), jax.default_matmul_precision("highest"):
        keys = jax.eval_shape(lambda: corpora.seed_keys(list(range(seeds)))[0])
        held: Any = jax.eval_shape(lambda keys: corpora.load(sweep.data, keys, _silent).corpora, keys)
        params: Any = jax.eval_shape(lambda keys: init_params(sweep, held.train, keys), keys)
        step = jax.ShapeDtypeStruct((), jnp.int32)
        peaks = []
        for phase in sweep.phases:
            made = program(sweep, phase, Loaded(held, False, []))
            state = jax.eval_shape(made.init, params, held)
            # The exact flow does its work when it is set up, descents when they advance.
            peaks += [_bytes(made.init, params, held), _bytes(made.advance, state, held, step)]
            params = state.params
    return max(peaks)


def _bytes(function: Any, *arguments: Any) -> int:
    found: Any = jax.jit(function).lower(*arguments).compile().memory_analysis()
    held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return held + found.temp_size_in_bytes


def _silent(description: str, done: int, total: int | None) -> None:
    pass
