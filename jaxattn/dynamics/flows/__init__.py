"""Exact gradient flows, free of cancellation and underflow, over distances that no step loop can cover."""
