"""Registry of built-in phases, keyed by their `kind` in sweep files."""

from jaxattn.base import Phase
from jaxattn.dynamics.descents.descent_phase import Descent, OneStep
from jaxattn.dynamics.descents.log_descent import LogDescent
from jaxattn.dynamics.flows.flow_phase import ExactFlow, FullFlow, JointFlow
from jaxattn.dynamics.flows.gradient_flow import GradientFlow

PHASES: dict[str, type[Phase]] = {
    "one_step": OneStep,
    "descent": Descent,
    "exact_flow": ExactFlow,
    "joint_flow": JointFlow,
    "full_flow": FullFlow,
    "gradient_flow": GradientFlow,
    "log_descent": LogDescent,
}
