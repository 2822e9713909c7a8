"""Diagnosis: what the paper's figures say of a classifier of one's own."""

from jaxattn.lab.diagnosis.diagnose import Diagnosis, diagnose
from jaxattn.lab.diagnosis.inputs import read_corpus

__all__ = ["Diagnosis", "diagnose", "read_corpus"]
