"""Compare the functions of a model whose scores are linear in a parameter."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.attention import attend
from jaxattn.base import Dataset, Model
from jaxattn.base.model import HasLinearScores, HasTokenScores, Params, linear_in
from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import floats_to_float64, get, replace
from jaxattn.data.corpus import Corpus
from jaxattn.models.one_layer import OneLayer, is_one_layer

# Largest difference between outputs, relative to the largest token value. Constants in float32 cause less.
_TOLERANCE = 1e-4


def check_linear_scores(model: Model[Any], params: Params, data: Dataset) -> None:
    """Raise InputError unless a model's `outputs`, `scores` and `scores_and_values` are the same function.

    For p the parameter in `linear_in`, and Φ and γ that `scores` returns for another value of p,

        outputs(p) = Σ_s q_s γ_s,   q = softmax of Φ p over the tokens s of a sequence.

    This is checked in float64 for the given and for random parameters. There is no check if no parameter is
    in `linear_in`.

    Args:
        model: the model.
        params: its parameters; not traced.
        data: a few examples; not traced.
    """
    name = linear_in(model)
    built_in = is_one_layer(model) and cast(Any, type(model)).scores is OneLayer.scores
    if name is None or built_in:
        return
    with backend.float64():
        params, data = floats_to_float64(params), floats_to_float64(data)
        rng = np.random.default_rng(0)
        for start in (params, jax.tree.map(lambda x: _moved(x, rng), params)):
            given: Any = cast(HasLinearScores, model).scores(start, data)
            p, keys = get(start, name), jnp.asarray(given.keys, jnp.float64)
            direction = rng.normal(size=p.size)
            # Scores of size 1 change the attention on all tokens.
            size = jnp.abs(keys @ direction).max()
            for at in (p.reshape(-1), direction / jnp.where(size > 0, size, 1)):
                here = replace(start, **{name: at.reshape(p.shape)})
                found = model.outputs(here, data)
                if given.values is not None:
                    values = jnp.asarray(given.values, jnp.float64)
                    _compare(model, "scores", found, attend(given.corpus, keys @ at, values), values)
                if isinstance(model, HasTokenScores) and isinstance(data, Corpus):
                    scores, values = model.scores_and_values(here)
                    expected = attend(data, scores, values)
                    if expected.shape == found.shape:  # Values may have one column for all classes.
                        _compare(model, "scores_and_values", found, expected, values)


def _moved(x: Array, rng: np.random.Generator) -> Array:
    """Return a random array of the same shape, with about the same size; integers are unchanged."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    size = jnp.sqrt((x**2).mean())
    return x + jnp.where(size > 0, size, 1) * rng.normal(size=x.shape)


def _compare(model: Model[Any], method: str, found: Array, expected: Array, values: Array) -> None:
    kind, name = model.kind or type(model).__name__, linear_in(model)
    if found.shape != expected.shape:
        raise InputError(
            f"{kind}.outputs returns shape {found.shape}, but attention with {kind}.{method} has shape "
            f"{expected.shape}; return scores of the same examples, or remove linear_in"
        )
    away = np.abs(np.asarray(found) - np.asarray(expected))
    away = float(np.where(np.isnan(found) & np.isnan(expected), 0, away).max(initial=0))
    if not away <= _TOLERANCE * float(np.abs(values).max()):
        raise InputError(
            f"{kind}.outputs and {kind}.{method} are not the same function of {name!r}: for some parameters, "
            f"outputs differ by {away:.3g} from attention with scores that are linear in {name!r}; correct "
            "one of the two methods, or remove linear_in"
        )
