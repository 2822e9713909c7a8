"""Interactive figure with a slider that follows a path of p to its max-margin direction."""

from jaxattn.lab.explorer.figure import Explorer, explore

__all__ = ["Explorer", "explore"]
