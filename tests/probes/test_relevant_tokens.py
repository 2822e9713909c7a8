import jax.numpy as jnp
import numpy as np

import jaxattn as ja
from jaxattn.models import OneLayer
from jaxattn.models.one_layer import Params
from jaxattn.probes import RelevantTokens


def measured(show, sequences, scores, relevant, **settings):
    """Measure a model whose scores are given: E = 1."""
    corpus = ja.data.from_sequences(sequences, [1] * len(sequences), vocab_size=len(scores))
    params = Params(jnp.eye(len(scores)), jnp.asarray(scores), jnp.ones(len(scores)))
    return RelevantTokens(relevant=relevant, **settings).measure(
        show(OneLayer(dim=len(scores)), params, corpus)
    )


def test_shares_of_sequences_by_hand(x64, show):
    # Of tokens 0, 1 and 2, which are relevant, the last one scores low.
    scores = [100.0, 95.0, 0.0, 98.0, 50.0]
    sequences = [[0, 4], [0, 1, 1, 4], [0, 2, 4], [0, 3], [2, 4], [3, 4]]
    found = measured(show, sequences, scores, 3)
    # The last sequence has no relevant token; in the one before the other token is selected, in [0, 3] both.
    np.testing.assert_allclose(found["relevant_selected"], 3 / 5)
    np.testing.assert_allclose(found["only_relevant_selected"], 2 / 5)
    np.testing.assert_allclose(found["relevant_tied"], 1 / 5)


def test_nats_tell_how_close_to_the_top_counts(x64, show):
    scores = [100.0, 95.0, 0.0]
    shares = [
        float(measured(show, [[0, 1, 2], [0, 2]], scores, 2, nats=nats)["only_relevant_selected"])
        for nats in (4.9, 5.1)
    ]
    assert shares == [1 / 2, 1]
    everything = measured(show, [[0, 1, 2], [0, 2]], scores, 2, nats=200.0)
    assert (everything["relevant_selected"], everything["relevant_tied"]) == (0, 1)


def test_the_margin_is_the_smallest_lead_of_a_relevant_token(x64, show):
    scores = [4.0, 3.0, 1.0, 0.0]
    found = measured(show, [[0, 2], [0, 1, 3], [1, 2]], scores, 2)
    np.testing.assert_allclose(found["relevant_margin"], 2 / np.linalg.norm(scores))


def test_shares_equal_a_loop_over_sequences(x64, show, rng):
    sequences = [rng.integers(0, 9, rng.integers(1, 7)).tolist() for _ in range(60)]
    scores = rng.normal(scale=20, size=9).tolist()
    found = measured(show, sequences, scores, 4)
    held, tied, only, some = 0, 0, 0, 0
    for sequence in map(set, sequences):
        top = max(scores[s] for s in sequence)
        chosen = {s for s in sequence if scores[s] >= top - 10}
        relevant = {s for s in sequence if s < 4}
        held += bool(relevant)
        selects = bool(chosen & relevant) and chosen <= relevant and chosen != sequence
        some += selects
        tied += bool(chosen & relevant) and not selects
        only += selects and relevant == chosen
    assert 0 < only < some < held < len(sequences)
    assert tied
    np.testing.assert_allclose(
        [found[name] for name in ("relevant_selected", "relevant_tied", "only_relevant_selected")],
        np.array([some, tied, only]) / held,
    )
