"""Dynamics: how parameters move. One step, descent, exact gradient flows; the phases made of them."""

from jaxattn.base import Phase, State, Task
from jaxattn.dynamics.descents.algorithm import Algorithm, Info, run
from jaxattn.dynamics.descents.descent import Descent, OneStep, descent, one_step
from jaxattn.dynamics.descents.early_stop import early_stop
from jaxattn.dynamics.descents.log_descent import LogDescent, log_descent, log_excess_loss
from jaxattn.dynamics.descents.optimizers import optimizer, schedule
from jaxattn.dynamics.flows.exact_flow import Path, exact_flow
from jaxattn.dynamics.flows.flow_phase import ExactFlow, FullFlow, JointFlow
from jaxattn.dynamics.flows.full_flow import FullPath, full_flow
from jaxattn.dynamics.flows.joint_flow import JointPath, joint_flow
from jaxattn.models.gradients import loss, loss_and_gradients

PHASES: dict[str, type[Phase]] = {
    "one_step": OneStep,
    "descent": Descent,
    "exact_flow": ExactFlow,
    "joint_flow": JointFlow,
    "full_flow": FullFlow,
    "log_descent": LogDescent,
}

__all__ = [
    "PHASES",
    "Algorithm",
    "Descent",
    "ExactFlow",
    "FullFlow",
    "FullPath",
    "Info",
    "JointFlow",
    "JointPath",
    "LogDescent",
    "OneStep",
    "Path",
    "Phase",
    "State",
    "Task",
    "descent",
    "early_stop",
    "exact_flow",
    "full_flow",
    "joint_flow",
    "log_descent",
    "log_excess_loss",
    "loss",
    "loss_and_gradients",
    "one_step",
    "optimizer",
    "run",
    "schedule",
]
