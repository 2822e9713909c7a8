"""The data of one seed of one setting, as a run has them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
from jax import Array

from jaxattn.base import Data, DrawnData, Progress, SharedData, silent
from jaxattn.core import backend
from jaxattn.data.splits import Loaded, Splits
from jaxattn.study.hyperparameters import numbers_of
from jaxattn.study.seed import keys


def dataset(
    data: Data, seed: int, dtype: str, swept: Collection[str] = (), progress: Progress = silent
) -> Loaded:
    """Draw the data of one seed, or read those that all seeds share.

    Args:
        data: a generator or a source.
        seed: whose data; of no matter where all seeds share them.
        dtype: that of the study, "float32" or "float64".
        swept: names of the generator's settings that a sweep varies: a run draws with them as traced numbers
            of the study's dtype, which may round otherwise than constants.
        progress: told how far the reading of texts is.

    Returns:
        The corpora, without a leading axis of seeds, and the names of the tokens.

    Raises:
        InputError: data that cannot be read.
    """
    with backend.precision(dtype):
        if isinstance(data, SharedData):
            return data.load(progress)

        traced = {str(path[0]): x for path, x in numbers_of(data) if len(path) == 1 and path[0] in swept}
        numbers = {name: jnp.asarray(x, dtype) for name, x in traced.items()}
        try:
            draw = _drawing(data)
        except TypeError:  # settings that are no keys, such as dictionaries
            draw = _drawing.__wrapped__(data)
        splits = draw(jnp.uint32(seed), numbers)
    return Loaded(splits, False, data.tokens)


@lru_cache(maxsize=8)
def _drawing(data: DrawnData) -> Callable[[Array, dict[str, Array]], Splits]:
    """Compile the drawing of one seed's corpora, once for all seeds."""

    def draw(seed: Array, numbers: dict[str, Array]) -> Splits:
        return msgspec.structs.replace(data, **numbers).draw(keys(seed)[0])

    return jax.jit(draw)


def swept_settings(cells: Iterable[Mapping[str, Any]]) -> set[str]:
    """Name the settings of the data that differ between cells, given the axis values of each."""
    found: dict[str, set[Any]] = {}
    for settings in cells:
        for key, value in settings.items():
            found.setdefault(key, set()).add(value)
    return {key.removeprefix("data.") for key, x in found.items() if key.startswith("data.") and len(x) > 1}
