"""Dynamics: how parameters move. One step, descent, exact gradient flow."""

from jaxattn.dynamics.descent import Descent, descent, run
from jaxattn.dynamics.early_stop import early_stop
from jaxattn.dynamics.exact_flow import Path, exact_flow
from jaxattn.dynamics.log_descent import log_descent, log_excess_loss
from jaxattn.dynamics.one_step import loss, loss_and_gradients, one_step
from jaxattn.dynamics.optimizers import optimizer, schedule

__all__ = [
    "Descent",
    "Path",
    "descent",
    "early_stop",
    "exact_flow",
    "log_descent",
    "log_excess_loss",
    "loss",
    "loss_and_gradients",
    "one_step",
    "optimizer",
    "run",
    "schedule",
]
