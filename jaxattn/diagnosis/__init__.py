"""Diagnosis: what the paper's figures say of a classifier of one's own."""

from jaxattn.diagnosis.corpus_file import read_corpus
from jaxattn.diagnosis.diagnose import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose", "read_corpus"]
