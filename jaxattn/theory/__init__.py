"""Theory: predicted limits of training dynamics, and certificates that a run converged to them.

For a custom selection rule, pass `Constraints` to `max_margin_from_constraints`. `certify_max_margin`
certifies solutions from any solver.
"""

from typing import TYPE_CHECKING

from jaxattn.attention import scores
from jaxattn.attention.scores import Scores
from jaxattn.core.lazy import lazy

# Imported now: the functions of these three modules have the names of their modules.
from jaxattn.theory.constraints import Constraints, constraints, distinct_tokens, tie_classes
from jaxattn.theory.max_margin import (
    differentiable_direction,
    max_margin,
    max_margin_batch,
    max_margin_from_constraints,
)
from jaxattn.theory.selection import (
    TIE,
    Selection,
    cosine,
    margin,
    one_minus_cosine,
    selection,
    selection_from_scores,
    selection_from_tokens,
    tie_tolerance,
)

if TYPE_CHECKING:
    from jaxattn.theory.bilinear import BilinearMargin, bilinear_max_margin
    from jaxattn.theory.certificate import certify_max_margin
    from jaxattn.theory.exact_certificate import ExactCertificate, certify_exactly, write_certificate
    from jaxattn.theory.limit import Limit, certify_limit
    from jaxattn.theory.one_step_law import one_step_error, predicted_values
    from jaxattn.theory.relaxed import RelaxedMaxMargin, relaxed_max_margin
    from jaxattn.theory.solution import MaxMargin, Status

__all__ = [
    "TIE",
    "BilinearMargin",
    "Constraints",
    "ExactCertificate",
    "Limit",
    "MaxMargin",
    "RelaxedMaxMargin",
    "Scores",
    "Selection",
    "Status",
    "bilinear_max_margin",
    "certify_exactly",
    "certify_limit",
    "certify_max_margin",
    "constraints",
    "cosine",
    "differentiable_direction",
    "distinct_tokens",
    "margin",
    "max_margin",
    "max_margin_batch",
    "max_margin_from_constraints",
    "one_minus_cosine",
    "one_step_error",
    "predicted_values",
    "relaxed_max_margin",
    "scores",
    "selection",
    "selection_from_scores",
    "selection_from_tokens",
    "tie_classes",
    "tie_tolerance",
    "write_certificate",
]

_NAMES = {
    "BilinearMargin": "jaxattn.theory.bilinear",
    "ExactCertificate": "jaxattn.theory.exact_certificate",
    "Limit": "jaxattn.theory.limit",
    "MaxMargin": "jaxattn.theory.solution",
    "RelaxedMaxMargin": "jaxattn.theory.relaxed",
    "Status": "jaxattn.theory.solution",
    "bilinear_max_margin": "jaxattn.theory.bilinear",
    "certify_exactly": "jaxattn.theory.exact_certificate",
    "certify_limit": "jaxattn.theory.limit",
    "certify_max_margin": "jaxattn.theory.certificate",
    "one_step_error": "jaxattn.theory.one_step_law",
    "predicted_values": "jaxattn.theory.one_step_law",
    "relaxed_max_margin": "jaxattn.theory.relaxed",
    "write_certificate": "jaxattn.theory.exact_certificate",
}
__getattr__, _ = lazy(__name__, _NAMES, {})


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
