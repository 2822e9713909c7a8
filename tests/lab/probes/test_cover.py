"""Top tokens, and E·v compared with the law: in closed form, and by a loop over sequences."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data.corpus import shapes

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture
def measured(show, measure):
    """Return a function that measures a model with given scores and values, ‖v‖ = 2."""

    def make(sequences, labels, scores, values):
        corpus = ja.data.from_sequences(sequences, labels, vocab_size=len(scores))
        E = np.stack([np.asarray(scores), np.asarray(values) / 2], axis=1)
        params = ja.models.one_layer.Params(*map(jnp.asarray, (E, [1.0, 0.0], [0.0, 2.0])))
        return {
            k: float(x)
            for k, x in measure(ja.probes.Cover(), show(ja.models.OneLayer(dim=2), params, corpus)).items()
        }

    return make


SEQUENCES, LABELS = [[0, 4, 4], [0, 1, 4], [1, 4], [2, 2, 4], [3, 4]], [1, 1, -1, -1, 1]
SCORES = [9.0, 5.0, 5.0, 5.0, 0.0, 100.0]


def test_cover_metrics_match_closed_forms_for_predicted_values(measured):
    """With four top tokens and ‖v‖² = 4, E·v is 2 y. Token 5 never occurs."""
    found = measured(SEQUENCES, LABELS, SCORES, [2.0, -2.0, -2.0, 2.0, 0.0, 0.0])
    least = 1 / (1 + np.exp(-4.0) + np.exp(-9.0))
    expected = {"size": 4, "share": 1, "error": 0, "elsewhere": 0, "cost": 4, "attention": least}
    for name, x in expected.items():
        np.testing.assert_allclose(found[f"cover_{name}"], x, atol=1e-12)


def test_cover_errors_are_maxima_over_tokens(measured):
    found = measured(SEQUENCES, LABELS, SCORES, [2.2, -1.5, -2.0, 2.0, -0.3, 0.5])
    np.testing.assert_allclose(found["cover_error"], 0.25)
    np.testing.assert_allclose(found["cover_elsewhere"], 0.25)
    assert measured(SEQUENCES, LABELS, SCORES, [-2.0, -2.0, -2.0, 2.0, 0.0, 0.0])["cover_error"] == 2


def test_sequences_whose_top_token_is_top_under_both_labels_are_not_covered(measured):
    found = measured(SEQUENCES, LABELS, [0.0, 1.0, 2.0, 3.0, 4.0, 0.0], [0.0] * 6)
    assert (found["cover_size"], found["cover_share"]) == (1, 0)
    assert np.isnan(found["cover_error"])
    # Token 1 is on top in the second sequence (label 1) and in the third (label -1).
    mixed = measured(SEQUENCES, LABELS, [5.0, 9.0, 5.0, 5.0, 0.0, 0.0], [2.0, 7.0, -2.0, 2.0, 0.0, 0.0])
    assert (mixed["cover_size"], mixed["cover_error"]) == (4, 0)
    np.testing.assert_allclose(mixed["cover_share"], 3 / 5, rtol=1e-6)


def test_first_tied_token_is_the_top_token(measured):
    found = measured([[0, 1, 1], [1, 2]], [1, -1], [3.0, 3.0, 3.0], [0.0, 0.0, 0.0])
    assert (found["cover_size"], found["cover_share"]) == (2, 1)
    np.testing.assert_allclose(found["cover_attention"], 1 / 3)


def test_cover_metrics_match_a_loop_over_sequences(show, corpus, draw, measure):
    bags, model = corpus(), ja.models.OneLayer(dim=5)
    ids, mask = (np.asarray(x) for x in ja.models.reference.padded_sequences(bags))
    for seed in range(8):
        params = draw(model, bags, seed)
        found = measure(ja.probes.Cover(), show(model, params, bags))
        E, p, v = (np.asarray(x) for x in (params.E, params.p, params.v))
        labels_of, least = {}, 1.0
        for row, real, y in zip(ids, mask, np.asarray(bags.targets), strict=True):
            tokens = row[real].tolist()
            top = max(tokens, key=lambda s: E[s] @ p)
            labels_of.setdefault(top, []).append(int(y))
            weights = [np.exp(E[s] @ p) for s in tokens]
            least = min(least, tokens.count(top) * np.exp(E[top] @ p) / sum(weights))
        r, one = len(labels_of), {s: y[0] for s, y in labels_of.items() if len(set(y)) == 1}
        law = v @ v / np.sqrt(r)
        expected = {
            "cover_size": r,
            "cover_share": sum(len(labels_of[s]) for s in one) / len(ids),
            "cover_error": max((abs(E[s] @ v - y * law) / law for s, y in one.items()), default=np.nan),
            "cover_elsewhere": max(abs(E[s] @ v) / law for s in range(len(E)) if s not in labels_of),
            "cover_cost": 2 * np.sqrt(r),
            "cover_attention": least,
        }
        assert found.keys() == expected.keys() == ja.probes.Cover.labels.keys()
        for name, x in expected.items():
            np.testing.assert_allclose(found[name], x, rtol=1e-12, err_msg=name)


def test_cover_requires_one_layer_and_two_classes(applies):
    three = shapes(vocab_size=3, num_classes=3)
    assert applies(ja.probes.Cover(), ja.models.OneLayer(dim=2), ja.losses.DEFAULT, ("p",))
    assert not applies(ja.probes.Cover(), ja.models.OneLayer(dim=2), ja.losses.DEFAULT, ("p",), three)
    assert not applies(ja.probes.Cover(), ja.models.MultiHead(dim=2, heads=2), ja.losses.DEFAULT, ("p",))
