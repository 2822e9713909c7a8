"""Second-order force of token pairs whose first-order forces cancel.

If a token `low` is below a token `top` of the top group in its sequences, the loss is a power series
in x = e^(a_low - a_top). If the first-order terms of some pairs i cancel, the second-order terms remain:

    L₂ = ½ Σ_ij M_ij x_i x_j,    -∂L₂/∂a_low(i) = ∂L₂/∂a_top(i) = -Σ_j M_ij x_i x_j.

These forces decay like e^(-2 gap), while all other forces decay like e^(-gap). `cancelled` computes
M.
"""

from typing import no_type_check

import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxattn.dynamics.flows.force import Force

# Maximum number of pairs in a flow. This many terms are computed at every point, even for fewer pairs.
MAX_PAIRS = 8


@no_type_check
@struct.dataclass
class PairForce:
    """Force of token pairs at a point, in the same units as `Force`.

    Attributes:
        top: (m,) int32; the top token of each pair.
        low: (m,) int32; the lower token of each pair.
        terms: (m, m); M_ij x_i x_j, in the same units; see the module docstring.
    """

    top: Array
    low: Array
    terms: Array

    def on_tokens(self, vocab: int) -> Float[Array, " V"]:
        """Compute the force on the scores, (V,)."""
        return self._spread(-self.terms.sum(axis=1), vocab)

    def add_curvature(
        self, curvature: Float[Array, "k k"], position: Int[Array, " V"]
    ) -> Float[Array, "k k"]:
        """Add the derivative of the force to a (k, k) matrix, with token s in row and column position[s].

        Tokens with position[s] ≥ k are omitted.
        """

        numbers = jnp.arange(len(curvature))
        apart = 1.0 * (position[self.low][:, None] == numbers) - (position[self.top][:, None] == numbers)
        return curvature + apart.T @ self._derivative @ apart

    def product(self, x: Float[Array, " V"]) -> Float[Array, " V"]:
        """Multiply the derivative of the force with respect to the scores by a vector."""
        return self._spread(self._derivative @ (x[self.low] - x[self.top]), len(x))

    def bound(self, lengths: Float[Array, " V"]) -> Float[Array, " V"]:
        """Compute upper bounds, (V,), on Σ_t |D_st| ‖E_t‖ for the derivative D of the force.

        `lengths` contains the ‖E_t‖.
        """
        rows = jnp.abs(self._derivative) @ (lengths[self.low] + lengths[self.top])
        return jnp.zeros_like(lengths).at[self.low].add(rows).at[self.top].add(rows)

    @property
    def _derivative(self) -> Float[Array, "m m"]:
        return -self.terms - jnp.diag(self.terms.sum(axis=1))

    def _spread(self, force: Array, vocab: int) -> Array:
        return jnp.zeros(vocab, force.dtype).at[self.low].add(force).at[self.top].add(-force)


@no_type_check
@struct.dataclass
class Pairs:
    """Second-order terms ½ Σ_ij M_ij x_i x_j of the loss, x_i = e^(a_low - a_top).

    Attributes:
        top: (m,) int32; the top token of each pair.
        low: (m,) int32; the lower token of each pair.
        log_size: (m, m); log |M_ij|, -inf where M_ij is zero.
        sign: (m, m); the sign of M_ij.
    """

    top: Array
    low: Array
    log_size: Array
    sign: Array

    def add_to(self, force: Force, scores: Float[Array, " V"]) -> Force:
        """Return the sum of a given force and the force of the pairs at scores a, (V,)."""
        apart = scores[self.low] - scores[self.top]
        log_size = self.log_size + apart[:, None] + apart
        unit = jnp.maximum(force.log_scale, log_size.max())
        unit = jnp.where(jnp.isneginf(unit), 0, unit)
        scale = jnp.exp(force.log_scale - unit)
        terms = self.sign * jnp.exp(log_size - unit)
        modes = None if force.modes is None else force.modes * jnp.sqrt(scale)
        return force.replace(  # type: ignore[attr-defined]
            force=scale * force.force,
            log_scale=jnp.maximum(force.log_scale, log_size.max()),
            gross=scale * force.gross + 2 * jnp.abs(terms).sum(),
            pull=scale * force.pull,
            modes=modes,
            pairs=PairForce(self.top, self.low, terms),
        )


def no_pairs(dtype: DTypeLike) -> Pairs:
    """Return an empty `Pairs`."""
    token, shape = jnp.zeros(MAX_PAIRS, jnp.int32), (MAX_PAIRS, MAX_PAIRS)
    return Pairs(token, token, jnp.full(shape, -jnp.inf, dtype), jnp.zeros(shape, dtype))
