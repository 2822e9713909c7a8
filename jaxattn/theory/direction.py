"""The max-margin direction as a function of the embeddings, for derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxattn.errors import InputError
from jaxattn.theory.certificate import MaxMargin

# Smaller singular values, relative to the largest, mean normalised differences that depend on others.
_DEPENDENT = 1e-10


def direction(E: Float[Array | np.ndarray, "V d"], answer: MaxMargin) -> Float[Array, "d"]:
    """Write the p of an answer as a function of E, which can be differentiated. Pure: jit, grad and vmap it.

        p(E) = N⁺ b,   N = (E_s - E_s' of the support, E_s - E_s'' of the ties),   b = (1, ..., 1, 0, ..., 0)

    While E stays near the one of the answer, the same pairs are tight, and by the implicit function theorem
    p(E) is the max-margin direction there too:

        dp = -N⁺ dN p + (1 - N⁺ N) dNᵀ (λ, μ).

    So `jax.jacobian(direction)(E, answer)` says how the limit of gradient flow on p, `limit(...).direction`,
    moves with the embeddings. Where a tight pair has multiplier 0 the direction has a kink, and this is its
    derivative on one side.

    Args:
        E: (V, d) float64; embeddings, equal or close to those of the answer.
        answer: one problem that was solved, every pair with margin 1.

    Returns:
        (d,); the answer's own p at its own E.

    Raises:
        InputError: a batch of answers, a problem that has no solution, one with other margins than 1, another
            number of tokens.

    Source: Fiacco, Introduction to Sensitivity and Stability Analysis in Nonlinear Programming (1983).
    """
    if np.ndim(answer.margin) != 0:
        raise InputError("answer: a batch; take one seed's with jax.tree.map(lambda x: x[seed], answer)")
    if not answer.feasible or len(answer.pairs) == 0:
        raise InputError(f"answer: no direction to follow ({answer.reason})")
    # λ·b = ‖p‖², whatever b is.
    if not np.isclose(answer.multipliers.sum(), answer.p @ answer.p, rtol=1e-6):
        raise InputError("answer: of some of its pairs less than 1 is required, and it does not say of which")
    ends = np.concatenate([answer.pairs, answer.ties])
    if ends.max() >= E.shape[0]:
        raise InputError(
            f"E: {E.shape[0]} tokens, but the answer is of more; give the E that it was found for"
        )
    required = np.repeat([1.0, 0.0], [len(answer.pairs), len(answer.ties)])
    E = jnp.asarray(E)
    rows = E[ends[:, 0]] - E[ends[:, 1]]
    # Rows of any lengths count alike; the lengths cancel, and have no part in the derivative.
    size = jax.lax.stop_gradient(jnp.linalg.norm(rows, axis=1))
    size = jnp.where(size > 0, size, 1.0)
    return jnp.linalg.pinv(rows / size[:, None], rtol=_DEPENDENT) @ (required / size)
