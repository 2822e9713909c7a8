"""Covers that full training converges to; the measurement is that of the finding."""

from jaxattn.lab.books import load_code

check = load_code(__file__, "../../findings/which_cover/claim.py:check")
