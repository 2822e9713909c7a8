"""Generic parameters of models, for tests that do not depend on how a model samples its own."""

import jax
import numpy as np


def generic(init, *, dim, seed=1, **settings):
    """Sample parameters of the shapes of `init` from N(0, 1/dim) by NumPy: `init` is not compiled."""
    shapes = jax.eval_shape(lambda: init(jax.random.key(0), dim=dim, **settings))
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jax.device_put((rng.normal(size=x.shape) / dim**0.5).astype(x.dtype)), shapes
    )
