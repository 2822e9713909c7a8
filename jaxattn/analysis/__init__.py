"""Analysis: from the table of a run to statistics, figures and a report."""

from jaxattn.analysis.corpus_file import read_corpus
from jaxattn.analysis.diagnose import Diagnosis, diagnose
from jaxattn.analysis.results import Results, load
from jaxattn.analysis.statistics import PowerLaw, aggregate, power_law, summary_table

__all__ = [
    "Diagnosis",
    "PowerLaw",
    "Results",
    "aggregate",
    "diagnose",
    "load",
    "power_law",
    "read_corpus",
    "summary_table",
]
