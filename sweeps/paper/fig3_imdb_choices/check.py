"""Figure 3, one layer on IMDB: random choices of the settings that are not published."""

from pathlib import Path

from random_choices import draw_tables, reproduced

import jaxattn as ja
from jaxattn.lab.books import load_code

CRITERIA = load_code(__file__, "../fig3_imdb/check.py:CRITERIA")


def check(results):
    """Measure in how many draws the shapes of the figure are reproduced."""
    return reproduced(results["study"], CRITERIA)


def tables(results):
    """Return what the shapes depend on, and all draws."""
    figure = ja.Study.read(Path(__file__).parent / "../fig3_imdb/study.toml")
    return draw_tables(results["study"], CRITERIA, figure)
