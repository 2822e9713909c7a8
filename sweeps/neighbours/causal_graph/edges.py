"""Probe that measures the attention of the first layer and losses."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from causal_graph import cross_entropy
from jax import Array
from transitions import counted, permutations
from trees import sample

import jaxattn as ja


class Edges(ja.Probe):
    """Attention to parents, distance of attention at roots from uniform, and losses on two data sets.

    The data sets are the test data, and sequences whose transition matrices are noisy permutation matrices.
    """

    labels: ClassVar = {
        "parent_attention": "attention to the parent",
        "parent_largest": "parent has the largest",
    }
    scales: ClassVar = {
        name: ja.probes.Scale(low=0, high=1) for name in ("parent_attention", "parent_largest")
    }

    def measure(self, context: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed on its test data, and on data with noisy permutation matrices."""
        data, params = context.data.test, context.params
        parents, first = data.parents[0], context.model.by_position(params)
        has_parent = parents >= 0
        own = jnp.take_along_axis(first, jnp.maximum(parents, 0)[:, None], axis=1)[:, 0]
        place = jnp.arange(len(parents))
        uniform = jnp.tri(len(parents)) / (place[:, None] + 1)
        is_root = ~has_parent & (place > 0) & (place < len(place) - 1)
        distance = jnp.abs(first - uniform).sum(axis=1) / 2
        found = {
            "parent_attention": (own * has_parent).sum() / has_parent.sum(),
            "parent_half": ((own > 0.5) & has_parent).sum() / has_parent.sum(),
            "parent_largest": ((first.argmax(axis=1) == parents) & has_parent).sum() / has_parent.sum(),
            "root_distance": (distance * is_root).sum() / is_root.sum(),
            "uniform_loss": jnp.log(data.vocab_size),
        }
        key = jax.random.fold_in(jax.random.key(0), data.ids.sum())  # differs between seeds
        P = permutations(key, shape=data.P.shape)
        others = sample(key, parents, P).replace(concentration=data.concentration)
        for name, one in {"": data, "other_": others}.items():
            estimates = {
                "loss": context.model.outputs(params, one),
                "entropy": jnp.log(one.targets),
                "counted": jnp.log(counted(one)),
            } | ({} if one.bayes is None else {"bayes": jnp.log(one.bayes)})
            for words, log_q in estimates.items():
                found[f"{name}{words}_of_test"] = cross_entropy(log_q, one.targets).mean()
        return found
