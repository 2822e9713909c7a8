"""Books: collections of published results and claims that are reproduced and checked against criteria."""

from jaxattn.lab.books.book import Book, Item, read_book
from jaxattn.lab.books.cells import Cell, cells, round_up, worst
from jaxattn.lab.books.checks import problems
from jaxattn.lab.books.findings import Finding, Measured, declare_names, mean, share
from jaxattn.lab.books.metrics import cell_names
from jaxattn.lab.books.new import create
from jaxattn.lab.books.run import list_findings, reproduce
from jaxattn.lab.results.judge import around, at_least, at_most, within_factor

__all__ = [
    "Book",
    "Cell",
    "Finding",
    "Item",
    "Measured",
    "around",
    "at_least",
    "at_most",
    "cell_names",
    "cells",
    "create",
    "declare_names",
    "list_findings",
    "mean",
    "problems",
    "read_book",
    "reproduce",
    "round_up",
    "share",
    "within_factor",
    "worst",
]
