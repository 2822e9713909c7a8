"""The one-step law of K classes: the exponent of d in its error."""

import pandas as pd

from jaxattn.lab.books import around, of_estimate
from jaxattn.lab.results.fits import power_law
from jaxattn.lab.results.statistics import last_steps


def check(results):
    """Fit the exponent of d in the error per unit of η0."""
    wide = errors(results["study"])
    fit = power_law(wide.index.to_numpy(float), wide.to_numpy(float))
    text = "exponent of d in the error per unit of η0"
    return [of_estimate("exponent", text, fit.estimate, expected=around(-0.5, 0.05), published="-0.5")]


def errors(results):
    """Return the errors at the end, one row per d and one column per seed."""
    records = last_steps(results.records)
    records = results.with_axes(records[records["metric"] == "one_step_error"])
    return records.pivot_table(index="model.dim", columns="seed", values="value").sort_index()


def tables(results):
    """Return the mean error for each d."""
    wide = errors(results["study"])
    table = {"d": list(wide.index), "error per unit of η0": wide.mean(axis=1).tolist()}
    return {"Error of the one-step law": pd.DataFrame(table)}
