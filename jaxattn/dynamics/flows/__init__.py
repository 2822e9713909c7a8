"""Exact gradient flows, free of cancellation and underflow, over distances that step loops cannot reach."""
