"""What attention selects, up to some nats: in JAX and in NumPy, and by a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.probes.selection import attended, attended_on_host

pytestmark = pytest.mark.usefixtures("x64")

jitted = jax.jit(attended, static_argnums=2)
SEQUENCES = [[0, 1, 2], [0, 1], [3], [2, 2, 3]]


def by_loop(scores, nats):
    return [sorted({s for s in x if scores[s] >= max(scores[t] for t in x) - nats}) for x in SEQUENCES]


@pytest.mark.parametrize("nats", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("unused", [0.0, 1e4, -np.inf])
def test_only_tokens_of_the_sequence_count(rng, nats, unused):
    """Token 4 is in the vocabulary and in no sequence."""
    corpus = ja.data.from_sequences(SEQUENCES, [1, -1, 1, -1], vocab_size=5)
    for scores in (np.zeros(5), rng.normal(size=5), 20 * rng.normal(size=5)):
        scores[4] = unused
        expected = by_loop(scores, nats)
        host, counts = attended_on_host(scores, corpus, nats)
        assert counts.tolist() == [len(x) for x in expected]
        for found in (
            attended(jnp.asarray(scores), corpus, nats),
            host,
            jitted(jnp.asarray(scores), corpus, nats),
        ):
            mask, index = np.asarray(found.mask), np.asarray(corpus.bags.index)
            owner = np.broadcast_to(np.asarray(corpus.bags.owner)[:, None], mask.shape)
            assert [sorted(index[mask & (owner == k)].tolist()) for k in range(4)] == expected
