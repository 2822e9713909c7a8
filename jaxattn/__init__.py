"""Gradient training of softmax attention with trained embeddings, as pure functions."""

from jaxattn import attention, data, dynamics, losses, models, theory

__all__ = ["attention", "data", "dynamics", "losses", "models", "theory"]
__version__ = "0.1.0"
