"""Descents: one step, loops of an optimiser, first-order methods in the log domain."""
