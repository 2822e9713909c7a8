"""Exact gradient flows without cancellation or underflow, over distances that training steps cannot cover."""
