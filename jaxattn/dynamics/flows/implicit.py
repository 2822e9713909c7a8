"""Implicit Runge-Kutta solver for a state stored as one flat array. It also works inside `jax.shard_map`."""

from typing import Any

import diffrax
import lineax
from diffrax import VeryChord, with_stepsize_controller_tols
from jax import Array
from jax.scipy.linalg import lu_solve


class _FlatLU(lineax.LU):
    """LU solver without lineax's structure check, which fails inside `shard_map` because shardings differ."""

    def compute(self, state: Any, vector: Array, options: dict[str, Any]) -> Any:
        factors, _, transpose = state
        solution = lu_solve(factors, vector, trans=1 if transpose.value else 0)
        return solution, lineax.RESULTS.successful, {}


def kvaerno5() -> diffrax.Kvaerno5:
    """Return a Kvaerno5 solver whose Newton steps use LU factorisation."""
    return diffrax.Kvaerno5(root_finder=with_stepsize_controller_tols(VeryChord)(linear_solver=_FlatLU()))
