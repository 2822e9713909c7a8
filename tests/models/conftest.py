"""What the tests of several models share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja


@pytest.fixture
def make_corpora(rng):
    """Make corpora of K classes: ragged with long bags, equally long draws, and draws longer than a row."""

    def make(classes):
        lengths = [1, 2, 2, 150, *rng.integers(1, 70, 12)]
        drawn = rng.integers(0, classes, len(lengths))
        labels = (2 * drawn - 1 if classes == 2 else drawn).tolist()
        ragged = [rng.integers(0, 75, length).tolist() for length in lengths]
        yield ja.data.from_sequences(ragged, labels, vocab_size=81, num_classes=classes)
        for length in (9, 70):
            tokens, labels = rng.integers(0, 60, (5, length)), rng.integers(0, classes, 5)
            yield ja.data.corpus.from_draws(
                jnp.asarray(tokens),
                jnp.asarray(2 * labels - 1 if classes == 2 else labels),
                vocab_size=62,
                num_classes=classes,
            )

    return make


@pytest.fixture
def assert_equals_textbook():
    """Compare logits and all gradients of a model with those of its textbook form, in float64."""

    def compare(logits, textbook, params, corpus, rtol=1e-10, atol=1e-12):
        ids, mask = ja.models.reference.padded_sequences(corpus)

        def loss(form, *data):
            return lambda x: ja.losses.classification(form(x, *data), corpus.labels)

        np.testing.assert_allclose(logits(params, corpus), textbook(params, ids, mask), rtol=rtol, atol=atol)
        ours = jax.jit(jax.grad(loss(logits, corpus)))(params)
        theirs = jax.jit(jax.grad(loss(textbook, ids, mask)))(params)
        assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(theirs)) > 1e-4
        for name, expected in vars(theirs).items():
            np.testing.assert_allclose(getattr(ours, name), expected, rtol=rtol, atol=atol, err_msg=name)

    return compare
