"""Books: results and claims of papers, reproduced by studies and judged by checks in Python.

An item's check.py defines `check(results)`, which returns findings. This module has what a check needs:
`Finding`, and `mean`, `share` and `leave_one_out`, which build one from values of all seeds; the criteria
`around`, `within_factor`, `at_least` and `at_most`; `cells` of results; exponents (`powers`); and measures of
the shape of a curve.
"""

from jaxattn.lab.books.book import Book, Item, load_code, read_book
from jaxattn.lab.books.cells import Cell, cells, round_up, worst
from jaxattn.lab.books.checks import problems
from jaxattn.lab.books.export import export
from jaxattn.lab.books.finding import Finding, claim_verdict, leave_one_out, mean, of_estimate, share, slug
from jaxattn.lab.books.new import create
from jaxattn.lab.books.reproduction import Request, reproduce
from jaxattn.lab.books.shapes import lowest, sign_change, u_shape
from jaxattn.lab.results.correlations import spearman
from jaxattn.lab.results.fits import powers
from jaxattn.lab.results.judge import around, at_least, at_most, within_factor

__all__ = [
    "Book",
    "Cell",
    "Finding",
    "Item",
    "Request",
    "around",
    "at_least",
    "at_most",
    "cells",
    "claim_verdict",
    "create",
    "export",
    "leave_one_out",
    "load_code",
    "lowest",
    "mean",
    "of_estimate",
    "powers",
    "problems",
    "read_book",
    "reproduce",
    "round_up",
    "share",
    "sign_change",
    "slug",
    "spearman",
    "u_shape",
    "within_factor",
    "worst",
]
