"""Tables from a results folder: records, tokens, statistics with intervals, fits and trained parameters."""

from jaxattn.lab.results.correlations import bin_means
from jaxattn.lab.results.exponents import power_laws
from jaxattn.lab.results.fits import PowerLaw, power_law
from jaxattn.lab.results.statistics import aggregate, summary_table

__all__ = [
    "PowerLaw",
    "aggregate",
    "bin_means",
    "power_law",
    "power_laws",
    "summary_table",
]
