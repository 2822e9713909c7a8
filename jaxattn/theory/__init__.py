"""Theory: what the dynamics should do, and how to tell that it did."""

from jaxattn.theory.one_step_law import one_step_error, predicted_values

__all__ = ["one_step_error", "predicted_values"]
