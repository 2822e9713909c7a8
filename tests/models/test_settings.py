from functools import partial

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from jaxattn import models
from jaxattn.attention import attend
from jaxattn.core import pytrees
from jaxattn.data.corpus import shapes
from jaxattn.lab import kinds
from jaxattn.models.one_layer import is_one_layer

# Settings, the corresponding arguments of the module's functions, and the parameters.
SETTINGS = {
    "one_layer": (models.OneLayer(dim=6), {}, {}, ("E", "p", "v")),
    "mlp": (models.Mlp(dim=6, weights="identity"), {"weights": "identity"}, {}, ("E", "p", "v", "W", "b")),
    "two_layer": (models.TwoLayer(dim=6, residual=True), {}, {"residual": True}, ("E", "p", "v")),
    "two_layer_weights": (models.TwoLayerWeights(dim=6), {}, {}, ("E", "p", "v", "W1", "W2")),
    "key_query": (
        models.KeyQuery(dim=6, weights="normal"),
        {"weights": "normal"},
        {},
        ("E", "p", "v", "W"),
    ),
    "multi_head": (models.MultiHead(dim=6, heads=2), {"heads": 2}, {}, ("E", "p", "v")),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.more), 3])
@pytest.mark.more
def test_a_model_class_matches_the_functions_of_its_module(ragged, name, classes):
    model, starts, forms, parameters = SETTINGS[name]
    module, corpus = getattr(models, name), ragged(classes)
    assert type(model) is kinds.load_kind(kinds.MODELS[name])
    sizes = {"vocab_size": corpus.vocab_size, "num_classes": classes, "dtype": jnp.float32}
    params = model.init(jax.random.key(0), corpus, dtype=jnp.float32)
    assert pytrees.names(params) == parameters
    expected = module.init(jax.random.key(0), dim=6, **sizes, **starts)
    for mine, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(
        jax.jit(model.outputs)(params, corpus), jax.jit(partial(module.outputs, **forms))(params, corpus)
    )
    both = jax.jit(model.scores_and_values)(params), jax.jit(module.scores_and_values)(params)
    for mine, theirs in zip(*both, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.more
def test_declared_model_attributes_are_correct(ragged, name):
    """Attention does not depend on the values, and parameters in `token_rows` have one row per token."""
    model = SETTINGS[name][0]
    corpus = ragged(3)
    params, larger = (
        model.init(jax.random.key(0), shapes(vocab_size=size, num_classes=3), dtype=jnp.float32)
        for size in (corpus.vocab_size, corpus.vocab_size + 3)
    )
    for parameter in pytrees.names(params):
        mine, theirs = pytrees.get(params, parameter), pytrees.get(larger, parameter)
        if parameter in model.token_rows:
            assert len(theirs) == len(mine) + 3
            np.testing.assert_array_equal(theirs[: len(mine)], mine)
        else:
            np.testing.assert_array_equal(theirs, mine)
    if isinstance(model, models.TokenModel) and name != "mlp":
        found = jax.jit(lambda x: attend(corpus, *model.scores_and_values(x)))(params)
        np.testing.assert_allclose(found, jax.jit(model.outputs)(params, corpus), rtol=1e-5, atol=1e-6)
    assert is_one_layer(model) == (name == "one_layer")


def test_settings_are_validated_on_reading():
    read = msgspec.convert({"dim": 4, "heads": 2}, models.MultiHead)
    assert read == models.MultiHead(dim=4, heads=2)
    for name, wrong in (
        ("one_layer", {"dim": 0}),
        ("one_layer", {}),
        ("mlp", {"dim": 4, "width": 3}),
        ("key_query", {"dim": 4, "weights": "zero"}),
        ("mlp", {"dim": 4, "weights": "zero"}),
        ("multi_head", {"dim": 4, "heads": 0}),
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, kinds.load_kind(kinds.MODELS[name]))
