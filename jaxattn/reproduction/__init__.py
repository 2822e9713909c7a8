"""What the paper and its review thread report, run again and held beside our results."""

from jaxattn.paper.item import Item
from jaxattn.paper.items import ITEMS
from jaxattn.paper.run import reproduce

__all__ = ["ITEMS", "Item", "reproduce"]
