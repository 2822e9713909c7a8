"""Exact gradient flows: paths that no loop of steps can follow, without cancellation or underflow."""
