"""Attention with trained embeddings, as pure functions."""
