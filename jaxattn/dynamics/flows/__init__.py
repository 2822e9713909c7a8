"""Exact gradient flows, without cancellation or underflow, over distances that no step loop reaches."""
