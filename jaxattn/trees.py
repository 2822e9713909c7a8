"""Types shared by all frozen pytrees."""

from typing import Any

# A field of a pytree: an array, or whatever a tree transformation puts in an array's place. The shapes
# stand in the docstrings of the classes and are checked where functions take the arrays.
Leaf = Any
