"""Analysis: from the table of a run to statistics, figures and a report."""

from jaxattn.results.load import Results, load
from jaxattn.results.statistics import PowerLaw, aggregate, power_law, summary_table

__all__ = [
    "PowerLaw",
    "Results",
    "aggregate",
    "load",
    "power_law",
    "summary_table",
]
