"""The matrix E Eᵀ of all inner products and its derivative, with no more work than its symmetry leaves."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# From this many tokens on several products with parts of E are as fast as one, for each number they compute.
LARGE = 2048
# Of the products of one part with another, 36 of 64 are left.
PARTS = 8


@jax.custom_vjp
def gram_matrix(E: Float[Array, "V d"]) -> Float[Array, "V V"]:
    """Compute E Eᵀ; its derivative takes one product with E, where autodiff would take two.

    Args:
        E: (V, d).

    Returns:
        (V, V), symmetric.
    """
    if len(E) < LARGE:
        return E @ E.T
    size = -(-len(E) // PARTS)
    result = jnp.zeros((len(E), len(E)), E.dtype)
    for begin in range(0, len(E), size):
        end = begin + size
        part = E[begin:end] @ E[begin:].T
        result = result.at[begin:end, begin:].set(part)
        result = result.at[end:, begin:end].set(part[:, size:].T)
    return result


def _backward(E, d_gram):
    # Written out as a flat array, the transpose is a fast copy; a sum would read column after column.
    transposed = jax.lax.optimization_barrier(d_gram.T.ravel()).reshape(d_gram.shape)
    return ((d_gram + transposed) @ E,)


gram_matrix.defvjp(lambda E: (gram_matrix(E), E), _backward)
