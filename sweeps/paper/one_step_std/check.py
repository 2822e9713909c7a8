"""Spread within bins after one step on E, IMDB."""

from bin_spread import ratios, spread_table

from jaxattn.lab.books import within_factor


def check(results):
    """Compare the ratios of spreads with the published ones, for each η0."""
    return ratios(
        results["study"],
        expected={"Ev": within_factor(8.0, 2.0), "Ep": within_factor(6.0, 2.0)},
        published={"Ev": "8", "Ep": "6"},
    )


def tables(results):
    """Return the spreads, also relative to the range of the bin means."""
    return spread_table(results["study"])
