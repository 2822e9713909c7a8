"""Diagnosis of a trained attention classifier, using the statistics behind the paper's figures."""

from jaxattn.lab.diagnosis.diagnose import Diagnosis, diagnose
from jaxattn.lab.diagnosis.read_inputs import read_corpus

__all__ = ["Diagnosis", "diagnose", "read_corpus"]
