"""Early stopping: a descent that ends where a held-out corpus is fitted best."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxattn import losses
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.algorithm import Algorithm, Info, State
from jaxattn.dynamics.gradients import Logits, loss
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer
from jaxattn.trees import Leaf


@struct.dataclass
class EarlyStopped:
    """A descent's state and what the held-out corpus has said of it.

    Attributes:
        inner: the state of the descent.
        best: the parameters with the smallest held-out loss so far.
        best_loss: () float; that loss.
        waited: () int32; checks since then.
    """

    inner: State
    best: Leaf
    best_loss: Leaf
    waited: Leaf

    @property
    def params(self) -> Any:
        """The parameters: where the descent is, or the best ones once it has stopped."""
        return self.inner.params

    @property
    def step(self) -> Array:
        """Steps taken or sat out."""
        return self.inner.step

    @property
    def failed_at(self) -> Array:
        """The first step that was not finite, -1 if none."""
        return self.inner.failed_at


def early_stop(
    algorithm: Algorithm,
    *,
    steps: int,
    every: int,
    patience: int,
    logits: Logits = one_layer.logits,
    per_sequence: PerSequence = losses.DEFAULT,
) -> Algorithm:
    """Let a descent stop when the loss on a held-out corpus no longer falls.

    Args:
        algorithm: the descent.
        steps: length of the phase; at its end the best parameters are taken in any case.
        every: steps between checks of the held-out loss.
        patience: checks without a new best after which it stops and goes back to the best parameters.
        logits: the model.
        per_sequence: (logits, labels) -> (n,), whose mean on the held-out corpus is watched.

    Returns:
        An (init, step) pair whose step takes (training corpus, held-out corpus); a stopped descent stays.
    """

    def init(params: Any, *key: Array) -> EarlyStopped:
        dtype = next(x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating))
        return EarlyStopped(
            algorithm.init(params, *key), params, jnp.full((), jnp.inf, dtype), jnp.zeros((), jnp.int32)
        )

    def step(state: EarlyStopped, corpora: tuple[Corpus, Corpus]) -> tuple[EarlyStopped, Info]:
        train, held_out = corpora
        stopped = state.waited >= patience
        moved, info = algorithm.step(state.inner, train)
        stay = jax.tree.map(lambda new, old: jnp.where(stopped, old, new), moved, state.inner)
        inner = stay.replace(step=moved.step)
        checks = ((inner.step % every == 0) | (inner.step == steps)) & ~stopped
        found = jax.lax.cond(
            checks,
            lambda params: loss(params, held_out, logits, None, per_sequence).astype(state.best_loss.dtype),
            lambda _: jnp.full_like(state.best_loss, jnp.inf),
            inner.params,
        )
        better = checks & (found < state.best_loss)
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), inner.params, state.best)
        waited = jnp.where(better, 0, state.waited + checks)
        ends = (waited >= patience) | (inner.step == steps)
        params = jax.tree.map(lambda good, here: jnp.where(ends, good, here), best, inner.params)
        best_loss = jnp.where(better, found, state.best_loss)
        return EarlyStopped(inner.replace(params=params), best, best_loss, waited), info

    return Algorithm(init, step)
