"""Step sizes for which attention ignores a label; the measurement is that of the finding."""

from jaxattn.lab.books import load_code

check = load_code(__file__, "../../findings/label_window/check.py:check")
