"""What papers and their review threads report, run again and held beside our results by one judge."""

from jaxattn.reproduction.book import Book, Item, read
from jaxattn.reproduction.findings import Finding, Measured
from jaxattn.reproduction.run import look, reproduce

__all__ = ["Book", "Finding", "Item", "Measured", "look", "read", "reproduce"]
