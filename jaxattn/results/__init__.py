"""Results: from the folder of a run to statistics, figures, trained parameters and a report."""

from jaxattn.results.correlations import bin_means
from jaxattn.results.fits import PowerLaw, power_law
from jaxattn.results.load import Results, load
from jaxattn.results.statistics import aggregate, summary_table

__all__ = [
    "PowerLaw",
    "Results",
    "aggregate",
    "bin_means",
    "load",
    "power_law",
    "summary_table",
]
