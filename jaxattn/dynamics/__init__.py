"""Dynamics: how parameters move. One step, descent, exact gradient flows; the phases made of them."""

from jaxattn.base import Phase, State, Task
from jaxattn.dynamics.descents.descent import Algorithm, Info, descent, early_stop, one_step, run
from jaxattn.dynamics.descents.descent_phase import Descent, OneStep, optimizer, schedule
from jaxattn.dynamics.descents.log_descent import LogDescent, log_descent, log_excess_loss
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
