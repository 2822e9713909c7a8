"""Gradient training of softmax attention with trained embeddings, as pure functions."""

from jaxattn import data, dynamics, losses, models, theory

__all__ = ["data", "dynamics", "losses", "models", "theory"]
__version__ = "0.1.0"
