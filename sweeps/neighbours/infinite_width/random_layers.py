"""Statistics of random attention layers of finite and infinite width, sampled without their weights."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from infinite_width import finite_layer, limit_layer
from jax import Array

import jaxattn as ja
from jaxattn.base import Task

GRID = jnp.linspace(-6.0, 6.0, 241)


def normal_density(variance: Array) -> Array:
    """Compute the density of N(0, variance) on the grid as a (..., grid) array."""
    variance = jnp.asarray(variance)[..., None]
    return jnp.exp(-(GRID**2) / (2 * variance)) / jnp.sqrt(2 * jnp.pi * variance)


def divergence(p: Array, q: Array) -> Array:
    """Compute KL(p‖q) for two densities on the grid."""
    return jax.scipy.special.xlogy(p, p / q).sum() * (GRID[1] - GRID[0])


@struct.dataclass
class State:
    """State of `SampledLayers`. For each statistic, `sums` contains the sum over steps of its means."""

    params: dict[str, Array]
    step: Array
    failed_at: Array
    key: Array
    sums: dict[str, Array]


class SampledLayers(ja.Phase, kw_only=True):
    """Phase that samples random layers and accumulates their statistics.

    At each step, it samples `layers` layers of finite width and `layers` layers of infinite width.
    """

    train: ClassVar[tuple[str, ...]] = ()

    layers: int
    steps: int

    def init(self, task: Task, params: dict[str, Array], key: Array) -> State:
        """Build the initial state."""
        zero = jnp.zeros((), jnp.int32)
        scalars = ("own_score", "other_score", "variance", "square", "limit_variance", "limit_square")
        sums = dict.fromkeys(scalars, jnp.zeros(()))
        sums |= dict.fromkeys(("density", "limit_density"), jnp.zeros(GRID.shape))
        return State(params, zero, zero - 1, jax.random.key_data(key), sums)

    def step(self, task: Task, state: State) -> State:
        """Sample new layers, and add the means of their statistics to the sums."""
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        heads, n, keys = task.model.heads, task.data.train.dim, jax.random.split(key, (2, self.layers))
        v, scores = jax.lax.map(lambda key: finite_layer(key, n, heads), keys[0], batch_size=50)
        limit = jax.vmap(lambda key: limit_layer(key, heads))(keys[1])
        new = {"own_score": scores[:, 0] ** 2, "other_score": scores[:, 1] ** 2}
        for prefix, variance in (("", v), ("limit_", limit)):
            new |= {f"{prefix}variance": variance, f"{prefix}square": variance**2}
            new[f"{prefix}density"] = normal_density(variance)
        sums = {name: total + new[name].mean(axis=0) for name, total in state.sums.items()}
        return state.replace(step=state.step + 1, sums=sums)

    def metrics(self, state: State) -> dict[str, Array]:
        """Compute moments of outputs and scores, and divergences of densities, over all layers so far."""
        mean = {name: total / jnp.maximum(state.step, 1) for name, total in state.sums.items()}
        found = {"own_score": mean["own_score"], "other_score": mean["other_score"]}
        for prefix in ("", "limit_"):
            found[f"{prefix}variance"] = variance = mean[f"{prefix}variance"]
            found[f"{prefix}excess_kurtosis"] = 3 * (mean[f"{prefix}square"] / variance**2 - 1)
        found["from_limit"] = divergence(mean["density"], mean["limit_density"])
        found["limit_from_normal"] = divergence(mean["limit_density"], normal_density(mean["limit_variance"]))
        return found | {"evaluations": state.step}
