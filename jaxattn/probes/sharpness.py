"""The sharpness of the loss: the largest eigenvalue of its Hessian, by Lanczos' method."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from matfree import decomp

from jaxattn.base import Probe
from jaxattn.core import params_by_name
from jaxattn.core.settings import PositiveInt
from jaxattn.dynamics.descents.gradients import loss_and_gradients
from jaxattn.probes.seen import Seen


def largest_eigenvalue(
    product: Callable[[Array], Array], start: Float[Array, "N"], iterations: int
) -> Float[Array, ""]:
    """Estimate the largest eigenvalue of a symmetric matrix from products with it.

    Args:
        product: x -> A x, (N,) -> (N,).
        start: (N,); no eigenvector, for example random.
        iterations: products, N at most; the estimate grows with them and is exact, but for rounding, if
            there are as many as A has distinct eigenvalues.

    Returns:
        The estimate, at most the eigenvalue; NaN if A holds NaN.

    Source:
        Lanczos 1950; the iteration with reorthogonalisation is matfree's.
    """
    # The method squares what it is given: a Hessian late in training would underflow.
    size = jnp.abs(product(start)).max() / jnp.abs(start).max()
    scale = jnp.where(size > 0, size, 1)
    lanczos = decomp.hessenberg(min(iterations, len(start)), reortho="full", custom_vjp=False)
    _, matrix, _, _ = lanczos(lambda x: product(x) / scale, start)
    diagonal, below = jnp.diagonal(matrix), jnp.diagonal(matrix, -1)
    # Where the vectors found span an invariant subspace the next one is rounding error, or 0/0. What precedes
    # it holds all there is; the rest is filled up with a number that is no larger than the eigenvalue.
    reach = jax.lax.cummax(jnp.maximum(jnp.abs(diagonal[:-1]), below))
    goes_on = jnp.cumprod(below > float(jnp.finfo(start.dtype).eps) ** 0.5 * reach).astype(bool)
    diagonal = jnp.where(jnp.append(True, goes_on), diagonal, diagonal[0])
    below = jnp.where(goes_on, below, 0)
    found = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(below, -1) + jnp.diag(below, 1))[-1]
    return jnp.where(jnp.isfinite(diagonal[0]), scale * found, jnp.nan)


class Sharpness(Probe, frozen=True, kw_only=True):
    """The largest eigenvalue of the Hessian of the training loss in the trained parameters.

    It takes `iterations` products with the Hessian, each the work of a few gradients, and keeps as many
    vectors as long as the trained parameters together.
    """

    iterations: PositiveInt = 20
    labels: ClassVar[dict[str, str]] = {"sharpness": "sharpness"}

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure sharpness."""
        trained = {name: params_by_name.get(seen.params, name) for name in seen.train}
        flat, unravel = ravel_pytree(trained)

        def gradients(trained: dict[str, Array]) -> dict[str, Array]:
            params = params_by_name.replaced(seen.params, **trained)
            return loss_and_gradients(
                params, seen.sampled.train, seen.train, seen.model.outputs, per_sequence=seen.loss
            )[1]

        def product(x: Array) -> Array:
            # Forward over reverse: the derivative of attention is hand-written in reverse.
            return ravel_pytree(jax.jvp(gradients, (trained,), (unravel(x),))[1])[0]

        start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
        return {"sharpness": largest_eigenvalue(product, start, self.iterations)}
