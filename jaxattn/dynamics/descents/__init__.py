"""Descent: single steps, optimiser loops, and first-order methods in the log domain."""
