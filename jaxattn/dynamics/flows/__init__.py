"""Exact gradient flows, free of cancellation and underflow, over distances that are out of reach for step
loops.
"""
