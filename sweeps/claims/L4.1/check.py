"""Lemma 4.1: the error of the one-step law falls like d^(-1/2)."""

from one_step import one_step_law

from jaxattn.lab.books import around


def check(results):
    """Fit the exponent of d under Assumption 1, for independent tokens, and on IMDB."""
    for name in ("law-independent", "law-assumption1", "law-texts"):
        if name in results:
            yield from one_step_law(results[name], name.removeprefix("law-"), expected=around(-0.5, 0.05))
