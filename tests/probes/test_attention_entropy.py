import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import losses, models
from jaxattn.data import Vectors
from jaxattn.data import ragged as layout
from jaxattn.models import reference
from jaxattn.probes import AttentionEntropy
from jaxattn.probes.attention_entropy import attention_entropy


def by_token(corpus, scores):
    """Add the weights of all positions of a token up, one sequence after the other."""
    for tokens, real in zip(*reference.padded_sequences(corpus), strict=True):
        weights = np.exp(scores[tokens[real]] - scores[tokens[real]].max())
        q = np.bincount(tokens[real], weights / weights.sum())
        yield -sum(x * np.log(x) for x in q if x > 0)


@pytest.mark.parametrize("spread", [0.0, 1.0, 1e3])
def test_entropy_equals_that_of_every_sequence(rng, x64, corpus, spread):
    corpus, scores = corpus(), spread * rng.normal(size=12)
    found = attention_entropy(corpus, jnp.asarray(scores))
    np.testing.assert_allclose(found, list(by_token(corpus, scores)), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found[:2], 0, atol=1e-15)


def test_seeds_of_a_large_corpus_are_taken_in_turn(rng, x64, corpus, monkeypatch):
    monkeypatch.setattr(layout, "LARGE", 1)
    corpus, scores = corpus(), rng.normal(size=(3, 12))
    assert corpus.bags.is_large
    found = jax.vmap(lambda a: attention_entropy(corpus, a))(jnp.asarray(scores))
    for lane in range(3):
        np.testing.assert_allclose(found[lane], list(by_token(corpus, scores[lane])), rtol=1e-12, atol=1e-14)


def test_metrics_are_the_mean_and_a_number_of_tokens(x64, corpus, show, draw):
    corpus, model = corpus(3), models.KeyQuery(dim=5, weights="normal")
    params = draw(model, corpus)
    found = AttentionEntropy().measure(show(model, params, corpus))
    assert found.keys() == AttentionEntropy.labels.keys()
    expected = np.mean(list(by_token(corpus, np.asarray(params.E @ params.W @ params.p))))
    np.testing.assert_allclose(found["attention_entropy"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["attended_tokens"], np.exp(expected), rtol=1e-12)


def test_it_wants_attention_over_tokens_of_bags(applies):
    loss, vectors = losses.DEFAULT, Vectors(targets=np.ones(2), X=np.ones((2, 3, 4)), classes=2)
    assert applies(AttentionEntropy(), models.OneLayer(dim=5), loss, ("p",))
    assert not applies(AttentionEntropy(), models.TwoLayer(dim=5), loss, ("p",))
    assert not applies(AttentionEntropy(), models.OneLayer(dim=5), loss, ("p",), vectors)
