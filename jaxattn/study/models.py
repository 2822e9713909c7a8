"""From the model table of a sweep file to pure functions."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jaxattn import models
from jaxattn.study import config


class Model(NamedTuple):
    """A model.

    Attributes:
        init: (key, vocab_size, dim, num_classes, dtype) -> parameters.
        logits: (parameters, corpus) -> logits.
        scores_and_values: parameters -> scores (V,) and values (V,) or (V, K), what is plotted of tokens.
        parameters: names of the parameters.
        attends_to_tokens: whether a sequence's attention is softmax over these scores.
    """

    init: Callable[..., Any]
    logits: Callable[..., Any]
    scores_and_values: Callable[[Any], Any]
    parameters: tuple[str, ...]
    attends_to_tokens: bool


def model(wanted: config.Model) -> Model:
    """Look up the functions of a model."""
    match wanted:
        case config.OneLayer():
            of = models.one_layer
            return Model(of.init, of.logits, of.scores_and_values, ("E", "p", "v"), True)
        case config.Mlp():
            mlp = models.mlp
            return Model(mlp.init, mlp.logits, mlp.scores_and_values, ("E", "p", "v", "W", "b"), True)
        case config.TwoLayer():
            of = models.one_layer
            logits = partial(models.two_layer.logits, residual=wanted.residual)
            return Model(of.init, logits, of.scores_and_values, ("E", "p", "v"), False)
        case config.TwoLayerWeights():
            two = models.two_layer_weights
            logits = partial(two.logits, residual=wanted.residual)
            return Model(two.init, logits, two.scores_and_values, ("E", "p", "v", "W1", "W2"), False)
