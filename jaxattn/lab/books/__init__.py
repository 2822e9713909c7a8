"""Books: collections of published results and claims, which are re-run and checked against criteria."""

from jaxattn.lab.books.book import Book, Item, read_book
from jaxattn.lab.books.cells import Cell, cells, round_up, worst
from jaxattn.lab.books.findings import Finding, Measured, mean, share
from jaxattn.lab.books.run import look, reproduce
from jaxattn.lab.results.judge import around, at_least, within_factor

__all__ = [
    "Book",
    "Cell",
    "Finding",
    "Item",
    "Measured",
    "around",
    "at_least",
    "cells",
    "look",
    "mean",
    "read_book",
    "reproduce",
    "round_up",
    "share",
    "within_factor",
    "worst",
]
