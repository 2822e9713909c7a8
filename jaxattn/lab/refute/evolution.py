"""Differential evolution as a way to choose the instances of a batch.

It follows the score more closely than mutations do. It may converge to a tie, which the exact check rejects.
The default search then finds more.
"""

from collections.abc import Callable

import numpy as np

from jaxattn.lab.refute import space as spaces
from jaxattn.lab.refute.space import Instance, Space

# Generations per batch. Each evaluates as many instances as the first population has.
GENERATIONS = 20
# Cost of instances outside the assumptions; differential evolution requires finite costs.
_OUTSIDE = 1e12


def evolve(
    space: Space,
    size: int,
    score: Callable[[Instance], np.ndarray],
    start: Instance,
    rng: np.random.Generator,
) -> Instance:
    """Return all instances that differential evolution evaluates, as a batch, before `Space.repair`.

    Args:
        space: the space.
        size: index of the size.
        score: function of a batch, after `Space.repair`, that returns the scores to maximise.
        start: the first population.
        rng: source of the random numbers.

    Source:
        scipy.optimize.differential_evolution with integrality, one vectorised call per generation.
    """
    from scipy.optimize import differential_evolution

    low, high = spaces.bounds(space, size)
    # A fixed entry would be a variable without a range.
    free = low < high
    seen: list[np.ndarray] = []

    def cost(x: np.ndarray) -> np.ndarray:
        flat = np.tile(low, (x.shape[1], 1))
        flat[:, free] = np.rint(x.T).astype(int)
        seen.append(flat)
        batch = spaces.repaired(space, spaces.unflatten(space, size, flat))
        scores = score(batch)
        return np.where(np.isfinite(scores), -scores, _OUTSIDE)

    differential_evolution(
        cost,
        list(zip(low[free], high[free], strict=True)),
        integrality=np.ones(free.sum(), bool),
        vectorized=True,
        updating="deferred",
        init=spaces.flatten(space, start)[:, free].astype(float),
        maxiter=GENERATIONS,
        polish=False,
        tol=0,
        rng=rng,
    )
    return spaces.unflatten(space, size, np.concatenate(seen))
