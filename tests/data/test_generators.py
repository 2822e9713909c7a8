"""Tests of every kind of generator, from the data table of a study to the corpus."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab import kinds
from jaxattn.lab.study import seed

SIZES = {"vocab_size": 16, "length": 5, "sequences": 24, "test_sequences": 24, "validation_sequences": 24}
CLASSES = SIZES | {"relevant": 6}
GENERATORS = kinds.classes(kinds.GENERATORS)
KINDS = {
    "assumption1": CLASSES,
    "multi_relevant": CLASSES | {"relevant_per_sequence": 2},
    "independent": CLASSES,
    "topics": CLASSES | {"topic_words": 3},
    "xor": SIZES | {"pairs": 2},
    "negation": CLASSES,
}


@pytest.fixture
def generator(study):
    def make(kind, **changes):
        return study(data={"kind": kind} | KINDS[kind] | changes).base.data

    return make


@pytest.mark.parametrize("size", ["vocab_size", "length", "sequences", "test_sequences"])
def test_sizes_are_limited_to_32_bits(generator, size):
    with pytest.raises(ja.InputError, match=rf"data.{size}: expected 'int' <= 2147483647"):
        generator("independent", **{size: 2**31})


def same(left, right):
    return all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def test_every_generator_is_tested():
    assert set(KINDS) == set(GENERATORS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.more
def test_batch_matches_the_generator_function(kind, generator):
    made, key = generator(kind), jax.random.key(3)
    own = {name: x for name, x in KINDS[kind].items() if not name.endswith("_sequences")}
    drawn = jax.jit(lambda key: made.batch(key, 12))(key)
    batch_key, _ = jax.random.split(key)
    assert same(drawn, type(made).function(batch_key, **own | {"sequences": 12}))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("xor", {"sequences": 6}, "sequences: 6 is not a positive multiple of 4"),
        ("xor", {"validation_sequences": 6}, "sequences: 6 is not a positive multiple of 4"),
        ("negation", {"test_sequences": 6}, "sequences: 6 is not a positive multiple of 4"),
        ("negation", {"vocab_size": 7}, "vocab_size: 7"),
        ("topics", {"topic_words": 6}, "length: 5 is too short for 6"),
        ("multi_relevant", {"relevant_per_sequence": 4}, "relevant_per_sequence: must be between 1 and"),
    ],
)
def test_incompatible_sizes_are_rejected_before_sampling(kind, change, message, generator, monkeypatch):
    monkeypatch.setattr(GENERATORS[kind], "draw", None)
    with pytest.raises(ja.InputError, match=message):
        generator(kind, **change)
    with pytest.raises(ja.InputError, match=message):
        GENERATORS[kind](**KINDS[kind] | change).check()


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("xor", {"label_noise": 0.6}, "data.label_noise: expected 'float' <= 0.5"),
        ("xor", {"relevant": 4}, "data: unknown key 'relevant'; did you mean"),
        ("negation", {"negated": 1.5}, "data.negated: expected 'float' <= 1.0"),
        ("topics", {"num_classes": 1}, "data.num_classes: expected 'int' >= 2"),
    ],
)
def test_invalid_values_are_rejected(kind, change, message, generator):
    with pytest.raises(ja.InputError, match=message):
        generator(kind, **change)


@pytest.mark.parametrize("kind", ["joint_flow", "full_flow"])
def test_flows_for_two_classes_reject_three_classes(kind, study, tables):
    data = tables("flow")["data"] | {"num_classes": 3, "sequences": 21, "relevant": 6}
    phases = [{"name": "joint", "kind": kind}]
    with pytest.raises(
        ja.InputError, match=r"phases\[0\]: this phase requires two classes, got 3; use kind = 'descent'"
    ):
        study("flow", data=data, phases=phases, probes={})


@pytest.mark.more
def test_padding_the_vocabulary_does_not_change_samples(generator):
    """Seeds with different V share a program. Tokens beyond V do not occur and do not change samples."""
    key = seed.keys(1)[0]
    for kind in KINDS:
        small, large = (generator(kind, vocab_size=size) for size in (16, 20))
        padded = large.draw(key, jnp.int32(16))
        assert same(small.draw(key).train.targets, padded.train.targets)
        np.testing.assert_array_equal(padded.tokens.count[:16], small.draw(key).tokens.count)
        np.testing.assert_array_equal(padded.tokens.count[16:], 0)
