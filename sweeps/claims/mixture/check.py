"""Mixtures that p and v converge to; the measurement is that of the finding."""

from jaxattn.lab.books import load_code

check = load_code(__file__, "../../findings/which_mixture/claim.py:check")
