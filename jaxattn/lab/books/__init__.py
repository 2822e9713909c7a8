"""What papers and their review threads report, run again and held beside our results by one judge."""

from jaxattn.lab.books.book import Book, Item, read
from jaxattn.lab.books.findings import Finding, Measured
from jaxattn.lab.books.run import look, reproduce

__all__ = ["Book", "Finding", "Item", "Measured", "look", "read", "reproduce"]
