"""Plateau of the loss before attention becomes sparse, with trainable scores of the positions.

Only the last token of a sequence contains the answer.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.data import Vectors

PLATEAU = 0.8  # fraction of the initial loss


def sequences(key: Array, *, dim: int, length: int, sequences: int) -> Vectors:
    """Sample x_t ~ N(0, I/d) and y = W* x_T, with W* = I without loss of generality."""
    X = jax.random.normal(key, (sequences, length, dim)) / dim**0.5
    return Vectors(targets=X[:, -1], X=X)


class Params(NamedTuple):
    """Matrix W and scores a of the positions, both initialised to zero."""

    W: Array  # (d, d)
    a: Array  # (T,) scores of the positions


class ByPosition(ja.Model[Vectors]):
    """Attention by position: f(X) = W Σ_t q_t x_t with q = softmax(a)."""

    takes: ClassVar[type[Vectors]] = Vectors

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Return initial parameters that are all zero."""
        return Params(jnp.zeros((like.dim, like.dim), dtype), jnp.zeros(like.X.shape[1], dtype))

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f for each sequence as an (n, d) array."""
        return jnp.einsum("t,ntd->nd", jax.nn.softmax(params.a), data.X) @ params.W.T


def risk(params: Params) -> Array:
    """Compute the population risk ½ E‖f - y‖² = (‖q_T W - I‖² + Σ_{t<T} q_t² ‖W‖²) / (2d)."""
    W, q = params.W, jax.nn.softmax(params.a)
    d = len(W)
    return (((q[-1] * W - jnp.eye(d)) ** 2).sum() + (q[:-1] ** 2).sum() * (W**2).sum()) / (2 * d)


@struct.dataclass
class State:
    """State of `Training`, where `plateau` is the time that the risk has spent on the plateau so far."""

    params: Params
    step: Array
    failed_at: Array
    key: Array
    plateau: Array


class Training(ja.Phase, kw_only=True):
    """Gradient descent on new sequences at each step, or on the population risk.

    `fresh` is the number of new sequences per step, or 0 for the population risk. The step size is
    rate · (√d · T). The metric `plateau` is the time during which the risk stays above 80 % of its initial
    value.
    """

    train: ClassVar[tuple[str, ...]] = ("W", "a")

    rate: float
    steps: int
    fresh: int = 0

    def init(self, task: Task, params: Params, key: Array) -> State:
        """Build the initial state."""
        zero = jnp.zeros((), jnp.int32)
        return State(params, zero, zero - 1, jax.random.key_data(key), jnp.zeros_like(params.a[0]))

    def step(self, task: Task, state: State) -> State:
        """Take one step."""
        params, d, T = state.params, len(state.params.W), len(state.params.a)
        slopes = jax.grad(risk)(params)
        if self.fresh:
            key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
            of = {"outputs": task.model.outputs, "per_sequence": task.loss}
            batch = task.fresh(key, examples=self.fresh)
            slopes = Params(**ja.dynamics.loss_and_gradients(params, batch, self.train, **of)[1])
        size = self.rate * d**0.5 * T
        params = jax.tree.map(lambda x, slope: x - size * slope, params, slopes)
        plateau = state.plateau + size * (risk(params) >= PLATEAU / 2)
        return state.replace(params=params, step=state.step + 1, plateau=plateau)

    def metrics(self, state: State) -> dict[str, Array]:
        """Return the risk, and the length of the plateau, which is NaN until the plateau ends."""
        now = risk(state.params)
        ended = jnp.where(now < PLATEAU / 2, state.plateau, jnp.nan)
        return {"plateau": ended, "risk": now, "evaluations": state.step}
