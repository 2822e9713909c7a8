"""The exponent of the scale of E in the inverse error of the one-step law."""

import numpy as np

from jaxattn.lab.books import around, cells, mean, powers


def check(results):
    """Fit the exponent of the scale s for each seed."""
    every = cells(results["study"])
    errors = np.stack([cell.last("one_step_error") for cell in every], axis=1)
    exponent = powers([cell["model.init.E.scale"] for cell in every], 1 / errors)
    expected = around(-1.0, 0.3)
    return [mean("exponent", "exponent of s in 1/error", exponent, expected=expected, published="-1")]


def tables(results):
    """Return the settings."""
    return {"Cells": results["study"].cells}
