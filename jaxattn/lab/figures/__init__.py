"""Figures of results, with captions and a common style."""
