"""Sequences on a latent graph, with a transition matrix per sequence."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from transitions import dirichlet, posterior_mean, stationary

from jaxattn.data import Sequences

Graph = Literal["random", "chain", "pairs"]


class Trees(Sequences):
    """Sequences on a latent graph. The targets are the (n, S) distributions of the token after the last."""

    P: Array = None  # (n, S, S); transition matrices
    parents: Array = None  # (n, T); position of the parent, -1 for roots and for the last position
    concentration: Array = None  # (n,); c of the prior Dirichlet(c, ..., c) of an estimator
    bayes: Array = None  # (n, S); posterior mean of the target for a known graph, None without draws


def parent_positions(key: Array, *, length: int, graph: Graph) -> Array:
    """Return the parent of each position as a (T,) array, with -1 for roots and the last position."""
    order = jnp.arange(length)
    if graph == "chain":
        parents = order - 1
    elif graph == "pairs":
        parents = jnp.where(order % 2 == 1, order - 1, -1)
    else:
        parent_key, root_key = jax.random.split(key)
        parents = jax.random.randint(parent_key, (length,), 0, jnp.maximum(order, 1))
        parents = jnp.where(jax.random.bernoulli(root_key, 0.5, (length,)) | (order == 0), -1, parents)
    return parents.at[-1].set(-1)


def sample(key: Array, parents: Array, P: Array) -> Trees:
    """Sample one sequence for each transition matrix.

    Root tokens have the stationary distribution. The last token is uniform.
    """
    (sequences, states, _), first = P.shape, stationary(P)
    token_key, last_key = jax.random.split(key)
    uniform = jax.random.uniform(token_key, (len(parents), sequences, 1))

    def follow(tokens: Array, place: tuple[Array, Array, Array]) -> tuple[Array, None]:
        position, parent, u = place
        own = jax.nn.one_hot(tokens[parent], states)
        row = jnp.where(parent < 0, first, jnp.einsum("ns,nst->nt", own, P))
        token = (u > jnp.cumsum(row, axis=1)[:, :-1]).sum(axis=1)
        return tokens.at[position].set(token.astype(jnp.int32)), None

    tokens = jnp.zeros((len(parents), sequences), jnp.int32)
    tokens, _ = jax.lax.scan(follow, tokens, (jnp.arange(len(parents)), parents, uniform))
    ids = tokens.at[-1].set(jax.random.randint(last_key, (sequences,), 0, states)).T
    truth = jnp.take_along_axis(P, ids[:, -1:, None], axis=1)[:, 0]
    return Trees(
        targets=truth,
        ids=ids,
        mask=jnp.ones(ids.shape, bool),
        P=P,
        parents=jnp.broadcast_to(parents, ids.shape),
        vocab_size=states,
    )


def trees(
    key: Array,
    task_key: Array,
    *,
    sequences: int,
    graph: Graph,
    length: int,
    states: int,
    concentration: float,
    draws: int = 0,
) -> Trees:
    """Sample sequences on one graph per seed.

    `draws` is the number of sampled matrices for the posterior mean. With 0, none is computed.
    """
    parents = parent_positions(task_key, length=length, graph=graph)
    table_key, token_key, mean_key = jax.random.split(key, 3)
    P = dirichlet(table_key, concentration=concentration, shape=(sequences, states, states))
    data = sample(token_key, parents, P).replace(concentration=jnp.full(sequences, concentration))
    return data.replace(bayes=posterior_mean(mean_key, data, draws=draws)) if draws else data
