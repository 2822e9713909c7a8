"""Conversion of bags to padded sequences, also inside jit and under vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja

SEQUENCES = [[2, 0, 2], [1], [2, 1, 1, 0], [0, 0]]


def test_padded_sequences_recover_the_token_lists():
    corpus = ja.data.from_sequences(SEQUENCES, labels=[1, -1, 1, -1], vocab_size=3)
    ids, mask = ja.models.reference.padded_sequences(corpus)
    assert ids.shape == (4, 4)
    assert [sorted(row[real].tolist()) for row, real in zip(np.array(ids), np.array(mask), strict=True)] == [
        sorted(sequence) for sequence in SEQUENCES
    ]
    assert (np.array(ids)[~np.array(mask)] == 0).all()


def test_long_sequences_and_repeated_tokens_are_recovered(ragged):
    corpus = ragged(2)
    ids, mask = map(np.array, ja.models.reference.padded_sequences(corpus))
    counts = np.stack([np.bincount(row[real], minlength=81) for row, real in zip(ids, mask, strict=True)])
    bags = jax.tree.map(np.asarray, corpus.bags)
    wanted = np.zeros((corpus.num_examples, 81), int)
    np.add.at(wanted, (np.broadcast_to(bags.owner[:, None], bags.index.shape), bags.index), bags.count)
    np.testing.assert_array_equal(counts, wanted)


@pytest.mark.more
def test_padded_sequences_require_longest_under_jit_and_vmap():
    def draw(key):
        return ja.data.independent(key, vocab_size=20, relevant=8, length=6, sequences=4)

    keys = jax.random.split(jax.random.key(0), 3)
    corpora = jax.vmap(draw)(keys)
    ids, mask = jax.jit(jax.vmap(lambda corpus: ja.models.reference.padded_sequences(corpus, 7)))(corpora)
    assert ids.shape == (3, 4, 7)
    for k, key in enumerate(keys):
        alone, real = ja.models.reference.padded_sequences(draw(key))
        np.testing.assert_array_equal(ids[k, :, :6], alone)
        np.testing.assert_array_equal(mask[k], jnp.pad(real, ((0, 0), (0, 1))))
    with pytest.raises(ja.InputError, match="lengths are traced; pass longest="):
        jax.jit(ja.models.reference.padded_sequences)(jax.tree.map(lambda x: x[0], corpora))
