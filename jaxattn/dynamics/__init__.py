"""Training dynamics: single steps, descent, exact gradient flows, and the phases built from them."""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy

if TYPE_CHECKING:
    from jaxattn.base import Phase, State
    from jaxattn.dynamics.descents.descent import one_step
    from jaxattn.dynamics.descents.descent_phase import Descent, OneStep
    from jaxattn.dynamics.descents.log_descent import LogDescent, log_excess_loss
    from jaxattn.dynamics.descents.optimizers import optimizer, schedule
    from jaxattn.dynamics.flows.arc_length import Stop
    from jaxattn.dynamics.flows.exact_flow import Path, exact_flow
    from jaxattn.dynamics.flows.flow_phase import ExactFlow, FullFlow, JointFlow, RecordedPath
    from jaxattn.dynamics.flows.full_flow import FullPath, full_flow
    from jaxattn.dynamics.flows.gradient_flow import GradientFlow, gradient_flow
    from jaxattn.dynamics.flows.joint_flow import JointPath, joint_flow
    from jaxattn.dynamics.flows.rounding import Sensitivity, rounding_sensitivity
    from jaxattn.dynamics.task import Task, run
    from jaxattn.models.gradients import loss, loss_and_gradients

__all__ = [
    "Descent",
    "ExactFlow",
    "FullFlow",
    "FullPath",
    "GradientFlow",
    "JointFlow",
    "JointPath",
    "LogDescent",
    "OneStep",
    "Path",
    "Phase",
    "RecordedPath",
    "Sensitivity",
    "State",
    "Stop",
    "Task",
    "exact_flow",
    "full_flow",
    "gradient_flow",
    "joint_flow",
    "log_excess_loss",
    "loss",
    "loss_and_gradients",
    "one_step",
    "optimizer",
    "rounding_sensitivity",
    "run",
    "schedule",
]

_NAMES = {
    "Descent": "jaxattn.dynamics.descents.descent_phase",
    "ExactFlow": "jaxattn.dynamics.flows.flow_phase",
    "FullFlow": "jaxattn.dynamics.flows.flow_phase",
    "FullPath": "jaxattn.dynamics.flows.full_flow",
    "GradientFlow": "jaxattn.dynamics.flows.gradient_flow",
    "JointFlow": "jaxattn.dynamics.flows.flow_phase",
    "JointPath": "jaxattn.dynamics.flows.joint_flow",
    "LogDescent": "jaxattn.dynamics.descents.log_descent",
    "OneStep": "jaxattn.dynamics.descents.descent_phase",
    "Path": "jaxattn.dynamics.flows.exact_flow",
    "Phase": "jaxattn.base",
    "RecordedPath": "jaxattn.dynamics.flows.flow_phase",
    "Sensitivity": "jaxattn.dynamics.flows.rounding",
    "State": "jaxattn.base",
    "Stop": "jaxattn.dynamics.flows.arc_length",
    "Task": "jaxattn.dynamics.task",
    "exact_flow": "jaxattn.dynamics.flows.exact_flow",
    "full_flow": "jaxattn.dynamics.flows.full_flow",
    "gradient_flow": "jaxattn.dynamics.flows.gradient_flow",
    "joint_flow": "jaxattn.dynamics.flows.joint_flow",
    "log_excess_loss": "jaxattn.dynamics.descents.log_descent",
    "loss": "jaxattn.models.gradients",
    "loss_and_gradients": "jaxattn.models.gradients",
    "one_step": "jaxattn.dynamics.descents.descent",
    "optimizer": "jaxattn.dynamics.descents.optimizers",
    "rounding_sensitivity": "jaxattn.dynamics.flows.rounding",
    "run": "jaxattn.dynamics.task",
    "schedule": "jaxattn.dynamics.descents.optimizers",
}
__getattr__, __dir__ = lazy(__name__, _NAMES, {})
