"""Implicit Runge-Kutta solver for a state that is one flat array, also inside `jax.shard_map`."""

from typing import Any

import diffrax
import lineax
from diffrax import VeryChord, with_stepsize_controller_tols
from jax import Array
from jax.scipy.linalg import lu_solve


class _FlatLU(lineax.LU):
    """LU solver without the comparison of structures, which differ in their shardings inside `shard_map`."""

    def compute(self, state: Any, vector: Array, options: dict[str, Any]) -> Any:
        factors, _, transpose = state
        solution = lu_solve(factors, vector, trans=1 if transpose.value else 0)
        return solution, lineax.RESULTS.successful, {}


def kvaerno5() -> diffrax.Kvaerno5:
    """Return Kvaerno5 with Newton steps that solve their linear systems by LU factors."""
    return diffrax.Kvaerno5(root_finder=with_stepsize_controller_tols(VeryChord)(linear_solver=_FlatLU()))
