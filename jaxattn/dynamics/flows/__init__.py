"""Exact gradient flows, free of cancellation and underflow, over distances beyond step-by-step training."""
