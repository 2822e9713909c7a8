"""The exponent of d in the error of the one-step law."""

import numpy as np

from jaxattn.lab.books import around, cells, mean, powers


def check(results):
    """Fit the exponent of d for each seed."""
    every = cells(results["study"])
    errors = np.stack([cell.last("one_step_error") for cell in every], axis=1)
    exponent = powers([cell["model.dim"] for cell in every], errors)
    expected = around(-0.5, 0.3)
    return [mean("exponent", "exponent of d in the error", exponent, expected=expected, published="-1/2")]


def tables(results):
    """Return the settings."""
    return {"Cells": results["study"].cells}
