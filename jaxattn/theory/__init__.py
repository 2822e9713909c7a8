"""Theory: what the dynamics should do, and how to tell that it did."""

from jaxattn.attention import scores
from jaxattn.attention.scores import Scores
from jaxattn.theory.certificate import MaxMargin
from jaxattn.theory.cover import TokenCover, greedy_cover, minimum_cover
from jaxattn.theory.joint_limit import JointLimit, certify_joint_limit
from jaxattn.theory.label_window import LabelWindow, label_window
from jaxattn.theory.limit import Limit, certify_limit
from jaxattn.theory.lq_margin import lq_max_margin
from jaxattn.theory.max_margin import differentiable_direction, max_margin, max_margin_batch
from jaxattn.theory.one_step_law import one_step_error, predicted_values
from jaxattn.theory.relaxed import RelaxedMaxMargin, relaxed_max_margin
from jaxattn.theory.selection import (
    Selection,
    cosine,
    margin,
    one_minus_cosine,
    selection,
    selection_from_scores,
    selection_of,
)

__all__ = [
    "JointLimit",
    "LabelWindow",
    "Limit",
    "MaxMargin",
    "RelaxedMaxMargin",
    "Scores",
    "Selection",
    "TokenCover",
    "certify_joint_limit",
    "certify_limit",
    "cosine",
    "differentiable_direction",
    "greedy_cover",
    "label_window",
    "lq_max_margin",
    "margin",
    "max_margin",
    "max_margin_batch",
    "minimum_cover",
    "one_minus_cosine",
    "one_step_error",
    "predicted_values",
    "relaxed_max_margin",
    "scores",
    "selection",
    "selection_from_scores",
    "selection_of",
]
