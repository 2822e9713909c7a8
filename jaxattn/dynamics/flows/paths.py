"""Paths of flows: recorded rows from the start to the end of a path, and the reason why it ended."""

import enum
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxattn.core.pytrees import Brief, Leaf


class Stop(enum.IntEnum):
    """The status of a path; `FlowPath.reason` describes it in words."""

    RUNNING = 0
    NORM = 1
    ARC_LENGTH = 2
    DIRECTION = 3
    STEP_BUDGET = 4
    STATIONARY = 5
    BALANCED = 6
    FAILED = 7
    UNSETTLED = 8
    LOSS = 9
    UNRESOLVED = 10
    UNDECIDED = 11
    TIME = 12


# Stopping conditions that the caller sets.
ASKED_FOR = (Stop.NORM, Stop.ARC_LENGTH, Stop.DIRECTION, Stop.LOSS, Stop.TIME)

_REASONS = {
    Stop.RUNNING: "running: the path has not ended yet",
    Stop.NORM: "norm: ‖p‖ reached until_norm",
    Stop.ARC_LENGTH: "arc_length: the path reached until_arc_length",
    Stop.DIRECTION: "direction: the direction of p changes by no more than until_direction",
    Stop.STEP_BUDGET: "step_budget: max_steps steps were accepted or rejected",
    Stop.STATIONARY: "stationary: the gradient is exactly zero",
    Stop.BALANCED: "balanced: the forces of the sequences cancel up to rounding, so p converges to a finite "
    "point; if v is trained too, forces below rounding could still move p",
    Stop.FAILED: "failed: NaN, or a step that is too short for float64",
    Stop.UNSETTLED: "unsettled: v has become large but is not determined by p, which the rest of the path "
    "requires",
    Stop.LOSS: "loss: log L reached until_log_loss",
    Stop.UNRESOLVED: "unresolved: forces that cancel hide all others in float64, so it is not known which "
    "tokens tie, or whether tied scores still move",
    Stop.UNDECIDED: "undecided: the forces between two tokens cancel, and the order of the force that is "
    "left is not known; the path is exact up to its last point",
    Stop.TIME: "time: t reached until_time",
}


class FlowPath(Brief):
    """Path of a flow, with a row for each recorded point; base class of the paths that flows return.

    Row 0 is the start, and the last row is the end of the path. All arrays have a leading axis for several
    seeds.

    Attributes:
        status: () int32; the stopping condition, a `Stop`.
        reached: () int32; the row at which the path ended. Later rows repeat it.
    """

    status: Any

    @property
    def reached(self) -> Array:
        """The row at which the path ended, or up to which it was computed, ()."""
        raise NotImplementedError(f"{type(self).__name__}.reached")

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, Array]:
        """Return the trained parameters at a row in full precision, by name."""
        raise NotImplementedError(f"{type(self).__name__}.params_at")

    def metrics_at(self, row: Array) -> dict[str, Array]:
        """Return the recorded metrics at a row: numbers () by name."""
        return {}

    @property
    def stop(self) -> Any:
        """The name of `status`: a string, or an array of strings for several seeds."""
        names = np.array([stop.name.lower() for stop in Stop])[np.asarray(self.status)]
        return str(names) if names.ndim == 0 else names

    @property
    def reason(self) -> str | list[str]:
        """Stopping condition in words; a list for several seeds."""
        if np.ndim(self.status) == 0:
            return _REASONS[Stop(int(self.status))]
        return [_REASONS[Stop(int(one))] for one in np.asarray(self.status)]


@struct.dataclass(repr=False)
class RecordedPath(FlowPath):
    """Path of a custom flow, with k rows.

    Attributes:
        params: trained parameters by name, (k, ...) each.
        metrics: recorded numbers by name, (k,) each.
        status: () int32; the stopping condition, a `ja.dynamics.Stop`.
        last: () int32; the row at which the path ended, which later rows repeat; None for row k - 1.
    """

    params: dict[str, Leaf]
    status: Leaf
    metrics: dict[str, Leaf] = struct.field(default_factory=dict)
    last: Leaf = None

    @property
    def reached(self) -> Array:
        """The row at which the path ended, ()."""
        return jnp.asarray(len(next(iter(self.params.values()))) - 1 if self.last is None else self.last)

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, Array]:
        """Return the trained parameters at a row."""
        return {name: self.params[name][row] for name in train}

    def metrics_at(self, row: Array) -> dict[str, Array]:
        """Return the recorded numbers at a row."""
        return {name: x[row] for name, x in self.metrics.items()}


def row_of(path: Any, row: Array, *names: str) -> dict[str, Array]:
    """Return some fields of a path at a row."""
    return {name: getattr(path, name)[row] for name in names}
