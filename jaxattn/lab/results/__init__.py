"""Results from a run folder: statistics, figures, trained parameters and a report."""

from jaxattn.lab.results.correlations import bin_means
from jaxattn.lab.results.exponents import power_laws
from jaxattn.lab.results.fits import PowerLaw, power_law
from jaxattn.lab.results.load import Results, load
from jaxattn.lab.results.statistics import aggregate, summary_table

__all__ = [
    "PowerLaw",
    "Results",
    "aggregate",
    "bin_means",
    "load",
    "power_law",
    "power_laws",
    "summary_table",
]
