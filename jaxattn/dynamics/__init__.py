"""Dynamics: how parameters move. One step, descent."""

from jaxattn.dynamics.descent import Descent, descent, run
from jaxattn.dynamics.one_step import loss, loss_and_gradients, one_step
from jaxattn.dynamics.optimizers import optimizer, schedule

__all__ = ["Descent", "descent", "loss", "loss_and_gradients", "one_step", "optimizer", "run", "schedule"]
