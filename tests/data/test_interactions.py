import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja

XOR = {"vocab_size": 40, "pairs": 3, "length": 7, "sequences": 120}
NEGATION = {"vocab_size": 40, "relevant": 6, "length": 7, "sequences": 160}
KINDS = {"xor": (ja.data.xor, XOR), "negation": (ja.data.negation, NEGATION)}
kinds = pytest.mark.parametrize("kind", KINDS)


def sequences(corpus):
    ids, mask = ja.models.reference.padded_sequences(corpus)
    assert mask.all()
    return np.asarray(ids).tolist(), np.asarray(corpus.targets).tolist()


def alpha(corpus):
    return np.asarray(ja.data.average_signed_frequency(corpus))


def same(left, right):
    return all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.more
def test_xor_has_zero_average_signed_frequency(seed):
    corpus = ja.data.xor(jax.random.key(seed), **XOR)
    assert (alpha(corpus) == 0).all()
    difference = np.asarray(ja.data.posterior_difference(corpus))
    assert (difference[np.asarray(ja.data.token_counts(corpus)) > 0] == 0).all()
    assert np.asarray(ja.data.irrelevant(corpus)).all()


@pytest.mark.parametrize("pairs", [1, 3])
def test_xor_label_is_positive_if_both_tokens_agree(pairs):
    rows, labels = sequences(ja.data.xor(jax.random.key(1), **XOR | {"pairs": pairs}))
    seen = []
    for row, label in zip(rows, labels, strict=True):
        first, second = sorted(token for token in row if token < 4 * pairs)
        assert first // 4 == second // 4
        assert (first % 4 in (0, 1), second % 4 in (2, 3)) == (True, True)
        assert label == (1 if first % 4 == second % 4 - 2 else -1)
        seen.append((first, second))
    counts = {pair: seen.count(pair) for pair in seen}
    assert len(counts) == 4 * pairs
    assert set(counts.values()) == {120 // (4 * pairs)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.more
def test_average_signed_frequency_is_zero_if_half_the_sequences_are_negated(seed):
    corpus = ja.data.negation(jax.random.key(seed), **NEGATION)
    assert (alpha(corpus) == 0).all()
    assert np.asarray(corpus.targets).sum() == 0


@pytest.mark.parametrize("negated", [0.0, 0.1, 0.25, 0.5, 0.7, 1.0])
@pytest.mark.more
def test_negation_flips_the_label(negated):
    rows, labels = sequences(ja.data.negation(jax.random.key(2), **NEGATION, negated=negated))
    turned = 0
    for row, label in zip(rows, labels, strict=True):
        (own,) = (token for token in row if token < 6)
        assert row.count(6) <= 1
        turned += row.count(6)
        assert label == (1 if own % 2 else -1) * (-1) ** row.count(6)
    assert turned == 2 * int(np.floor(np.float32(negated) * 80))
    assert sum(labels) == 0


@pytest.mark.parametrize("negated", [0.0, 0.1, 0.25, 0.7, 1.0])
@pytest.mark.more
def test_average_signed_frequency_decreases_with_the_negated_fraction(negated):
    sizes = NEGATION | {"relevant": 2, "sequences": 400}
    corpus = ja.data.negation(jax.random.key(3), **sizes, negated=negated)
    found = alpha(corpus)
    assert (found[2:] == 0).all()
    # Each of the two tokens is in half of the sequences, as one of seven tokens.
    np.testing.assert_allclose(found[:2], np.array([-1, 1]) * (1 - 2 * negated) / 14, rtol=1e-6)


@kinds
@pytest.mark.more
def test_vmap_matches_a_loop_and_samples_depend_only_on_the_key(kind):
    generate, sizes = KINDS[kind]
    keys = jax.random.split(jax.random.key(0), 3)
    batch = jax.jit(jax.vmap(lambda key: generate(key, **sizes)))(keys)
    looped = [generate(key, **sizes) for key in keys]
    for number, one in enumerate(looped):
        assert same(jax.tree.map(lambda x, i=number: x[i], batch), one)
    assert not same(looped[0], looped[1])


@kinds
@pytest.mark.more
def test_padding_the_vocabulary_does_not_change_samples(kind):
    generate, sizes = KINDS[kind]
    alone = generate(jax.random.key(4), **sizes)
    wide = jax.jit(lambda used: generate(jax.random.key(4), **sizes | {"vocab_size": 70}, used=used))(40)
    assert wide.vocab_size == 70
    assert sequences(wide) == sequences(alone)
    np.testing.assert_array_equal(ja.data.token_counts(wide)[40:], 0)


@pytest.mark.more
def test_the_negated_fraction_can_be_vmapped():
    shares = jnp.array([0.0, 0.25, 0.5])
    key = jax.random.key(5)
    batch = jax.vmap(lambda share: ja.data.negation(key, **NEGATION, negated=share))(shares)
    for number, share in enumerate([0.0, 0.25, 0.5]):
        alone = ja.data.negation(key, **NEGATION, negated=share)
        assert same(jax.tree.map(lambda x, i=number: x[i], batch), alone)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("xor", {"sequences": 6}, "sequences: 6 is not a positive multiple of 4"),
        ("xor", {"sequences": 0}, "xor.sequences: expected 'int' >= 1, got 0"),
        ("xor", {"pairs": 0}, "xor.pairs: expected 'int' >= 1, got 0"),
        ("xor", {"length": 1}, "length: 1 is too short for 2"),
        ("xor", {"vocab_size": 12}, "vocab_size: 12 leaves no irrelevant token"),
        ("xor", {"vocab_size": 11, "length": 2}, "vocab_size: 11"),
        ("negation", {"sequences": 6}, "sequences: 6 is not a positive multiple of 4"),
        ("negation", {"relevant": 5}, "relevant: 5 is not a positive multiple of 2"),
        ("negation", {"length": 1}, "length: 1 is too short for 2"),
        ("negation", {"vocab_size": 7, "length": 2}, "vocab_size: 7 leaves no irrelevant token"),
    ],
)
def test_impossible_sizes_are_rejected(kind, change, message):
    generate, sizes = KINDS[kind]
    with pytest.raises(ja.InputError, match=message):
        generate(jax.random.key(0), **sizes | change)


def test_xor_works_without_irrelevant_tokens():
    corpus = ja.data.xor(jax.random.key(0), vocab_size=4, length=2, sequences=4)
    assert sequences(corpus) == ([[0, 2], [0, 3], [1, 2], [1, 3]], [1, -1, -1, 1])
