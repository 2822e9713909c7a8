"""PRNG keys of a seed for data, initial parameters and batches.

A study can hold any of these three keys fixed, so that every seed uses the key of seed 0. Initial parameters
and batches use the same key, unless exactly one of the two is held fixed. A key depends only on the seed
and on `hold`, so seeds can be added to a study later.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

import jax
from jax import Array

from jaxattn.base import Data, Phase
from jaxattn.core.errors import InputError

Part = Literal["data", "start", "batches"]
PARTS: tuple[Part, ...] = ("data", "start", "batches")
# Seed whose keys are used for randomness that is held fixed, even if the study does not run this seed.
HELD_AT = 0


class Keys(NamedTuple):
    """PRNG keys of one seed, or of many seeds along a leading axis.

    Attributes:
        data: key for sampled data.
        start: key for initial parameters.
        batches: key for minibatches and all other randomness in the phases.
    """

    data: Array
    start: Array
    batches: Array


def keys(seed: int | Array, hold: Collection[str] = ()) -> Keys:
    """Return the PRNG keys of a seed, using the keys of seed 0 for the sources of randomness in `hold`."""

    def of(part: Part) -> tuple[Array, Array]:
        used = HELD_AT if part in hold else seed
        data_key, model_key = jax.random.split(jax.random.fold_in(jax.random.key(0), used))
        return data_key, model_key

    return Keys(of("data")[0], of("start")[1], of("batches")[1])


def in_order(hold: Collection[str]) -> list[str]:
    """Return the sources of randomness in `hold` in the order of `PARTS`, without duplicates."""
    return [part for part in PARTS if part in hold]


def varying(data: Data, phases: Collection[Phase], hold: Collection[str]) -> list[str]:
    """Return the sources of randomness that differ between seeds."""
    is_random = {
        "data": not data.shared,
        "start": True,
        "batches": any(phase.is_random for phase in phases),
    }
    return [part for part in PARTS if is_random[part] and part not in hold]


def check_fresh(phases: Collection[Phase], hold: Collection[str]) -> None:
    """Raise InputError if `hold` fixes the data, but a phase samples fresh examples with a key per seed."""
    for phase in phases:
        if "data" in hold and "batches" not in hold and getattr(phase, "fresh", None):
            raise InputError(
                f"hold: 'data' does not fix the examples of phase {phase.name!r}, which resamples them at "
                "every step (fresh); add 'batches' to hold, or replace fresh with batch_size"
            )


def check_seeds(data: Data, phases: Collection[Phase], hold: Collection[str], seeds: int) -> None:
    """Raise InputError if several seeds would give identical results because all randomness is held fixed."""
    if hold and seeds > 1 and not varying(data, phases, hold):
        raise InputError(
            f"hold: all {seeds} seeds would give the same results, because all randomness is fixed; "
            "remove an entry from hold, or use a single seed"
        )
