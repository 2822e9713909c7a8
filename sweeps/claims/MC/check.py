"""The one-step law for more than two classes, from the public review."""

from one_step import one_step_law

from jaxattn.lab.books import around


def check(results):
    """Fit the exponent of d for four classes."""
    return list(one_step_law(results["law-classes"], "classes", expected=around(-0.5, 0.05)))
