"""Exact gradient flows, free of cancellation and underflow, over distances beyond the reach of step loops."""
