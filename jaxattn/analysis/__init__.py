"""Analysis: from the table of a run to statistics, figures and a report."""

from jaxattn.analysis.results import Results, load
from jaxattn.analysis.statistics import PowerLaw, aggregate, power_law, summary_table

__all__ = [
    "PowerLaw",
    "Results",
    "aggregate",
    "load",
    "power_law",
    "summary_table",
]
