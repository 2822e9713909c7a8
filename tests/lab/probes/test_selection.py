"""Tokens that attention selects, within some nats: in JAX, in NumPy, and by a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.base.model import HasAttention
from jaxattn.data import ragged as layout
from jaxattn.lab.probes.selection import attended, attended_on_host, attention_entropy

pytestmark = pytest.mark.usefixtures("x64")

jitted = jax.jit(attended, static_argnums=2)
SEQUENCES = [[0, 1, 2], [0, 1], [3], [2, 2, 3]]


def by_loop(scores, nats):
    return [sorted({s for s in x if scores[s] >= max(scores[t] for t in x) - nats}) for x in SEQUENCES]


@pytest.mark.parametrize("nats", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("unused", [0.0, 1e4, -np.inf])
def test_attended_ignores_tokens_outside_the_sequence(rng, nats, unused):
    """Token 4 is in the vocabulary, but in no sequence."""
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


@pytest.fixture
def seen(show, corpus, draw):
    """Return the context of a model with three heads, with posterior differences of the tokens."""
    bags, model = corpus(), ja.models.MultiHead(dim=5, heads=3)
    shown = show(model, draw(model, bags), bags)
    shown.data = ja.data.Splits(bags, ja.data.token_statistics(bags))
    return shown


def test_heads_selected_matches_loops(x64, seen, measure):
    probe = ja.probes.HeadsSelected(important=0.3, min_count=2)
    first, _, last = seen.params.p
    # Opposite queries select different tokens.
    seen.params = seen.params.replace(p=jnp.stack([first, -first, last]))
    found = measure(probe, seen)
    params, bags = seen.params, seen.data.train
    important = np.asarray(seen.data.tokens.important(0.3, 2))
    assert 0 < important.sum() < len(important)
    ids, mask = (np.asarray(x) for x in ja.models.reference.padded_sequences(bags))
    selects, mass = np.zeros((3, len(ids)), bool), np.zeros((3, len(ids)))
    for h, p in enumerate(np.asarray(params.p)):
        scores = np.asarray(params.E) @ p
        for n, (row, real) in enumerate(zip(ids, mask, strict=True)):
            tokens = row[real]
            weight = np.exp(scores[tokens] - scores[tokens].max())
            mass[h, n] = (weight * important[tokens]).sum() / weight.sum()
            top = {s for s in tokens if scores[s] == scores[tokens].max()}
            selects[h, n] = all(important[s] for s in top) and top != set(tokens)
    np.testing.assert_allclose(found["head_mass"], mass.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found["head_selected"], selects.mean(axis=1))
    assert selects.all(axis=0).sum() < selects.any(axis=0).sum()
    np.testing.assert_allclose(found["any_head_selected"], selects.any(axis=0).mean())
    np.testing.assert_allclose(found["all_heads_selected"], selects.all(axis=0).mean())
    assert found.keys() == probe.labels.keys()


def test_identical_heads_match_a_single_query(x64, seen, measure):
    """Three equal queries give the metrics of the one-layer model."""
    p, v = seen.params.p[0], seen.params.v[0]
    seen.params = seen.params.replace(p=jnp.stack([p] * 3), v=jnp.stack([v] * 3))
    settings = {"important": 0.3, "min_count": 2}
    of_heads = measure(ja.probes.HeadsSelected(**settings), seen)
    task = Task(ja.models.OneLayer(dim=5), seen.loss, seen.data)
    one = ja.probes.ProbeContext(ja.models.one_layer.Params(E=seen.params.E, p=p, v=v), task, seen.phase)
    alone = measure(ja.probes.Selected(**settings), one)
    np.testing.assert_allclose(of_heads["head_mass"], [alone["important_mass"]] * 3, rtol=1e-12)
    for name in ("any_head_selected", "all_heads_selected"):
        np.testing.assert_array_equal(of_heads[name], alone["important_selected"])


def test_metrics_are_nan_if_no_token_is_important(x64, seen, measure):
    found = measure(ja.probes.HeadsSelected(important=1.0, min_count=1_000), seen)
    assert all(np.isnan(x).all() for x in found.values())


def test_heads_selected_requires_heads(applies):
    assert applies(ja.probes.HeadsSelected(), ja.models.MultiHead(dim=5, heads=2), ja.losses.DEFAULT, ("p",))
    assert not applies(ja.probes.HeadsSelected(), ja.models.OneLayer(dim=5), ja.losses.DEFAULT, ("p",))


@pytest.fixture
def measured(show, measure):
    """Return a function that measures a model with given scores, E = 1."""

    def make(sequences, scores, relevant, **settings):
        corpus = ja.data.from_sequences(sequences, [1] * len(sequences), vocab_size=len(scores))
        params = ja.models.one_layer.Params(
            *map(jnp.asarray, (np.eye(len(scores)), scores, np.ones(len(scores))))
        )
        probe = ja.probes.RelevantTokens(relevant=relevant, **settings)
        return measure(probe, show(ja.models.OneLayer(dim=len(scores)), params, corpus))

    return make


def test_relevant_token_fractions_are_correct_in_a_small_example(x64, measured):
    # Tokens 0, 1 and 2 are relevant, and the last one has a low score.
    scores = [100.0, 95.0, 0.0, 98.0, 50.0]
    sequences = [[0, 4], [0, 1, 1, 4], [0, 2, 4], [0, 3], [2, 4], [3, 4]]
    found = measured(sequences, scores, 3)
    # The last sequence has no relevant token, the one before selects an irrelevant token, and [0, 3] ties.
    np.testing.assert_allclose(found["relevant_selected"], 3 / 5)
    np.testing.assert_allclose(found["only_relevant_selected"], 2 / 5)
    np.testing.assert_allclose(found["relevant_tied"], 1 / 5)


def test_nats_determines_which_tokens_count_as_close_to_the_highest_score(x64, measured):
    scores = [100.0, 95.0, 0.0]
    shares = [
        float(measured([[0, 1, 2], [0, 2]], scores, 2, nats=nats)["only_relevant_selected"])
        for nats in (4.9, 5.1)
    ]
    assert shares == [1 / 2, 1]
    everything = measured([[0, 1, 2], [0, 2]], scores, 2, nats=200.0)
    assert (everything["relevant_selected"], everything["relevant_tied"]) == (0, 1)


def test_margin_is_the_smallest_gap_by_which_a_relevant_token_leads(x64, measured):
    scores = [4.0, 3.0, 1.0, 0.0]
    found = measured([[0, 2], [0, 1, 3], [1, 2]], scores, 2)
    np.testing.assert_allclose(found["relevant_margin"], 2 / np.linalg.norm(scores))


def test_relevant_tokens_match_a_loop(x64, measured, rng):
    sequences = [rng.integers(0, 9, rng.integers(1, 7)).tolist() for _ in range(60)]
    scores = rng.normal(scale=20, size=9).tolist()
    found = measured(sequences, scores, 4)
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


def by_token(corpus, scores):
    """Sum the weights of all positions by token, in a loop over sequences."""
    for tokens, real in zip(*map(np.asarray, ja.models.reference.padded_sequences(corpus)), strict=True):
        weights = np.exp(scores[tokens[real]] - scores[tokens[real]].max())
        q = np.bincount(tokens[real], weights / weights.sum())
        yield -sum(x * np.log(x) for x in q if x > 0)


@pytest.mark.parametrize("spread", [0.0, 1.0, 1e3])
def test_entropy_matches_a_loop(rng, x64, corpus, spread):
    corpus, scores = corpus(), spread * rng.normal(size=12)
    found = jax.jit(attention_entropy)(corpus, scores)
    np.testing.assert_allclose(found, list(by_token(corpus, scores)), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found[:2], 0, atol=1e-15)


def test_seeds_of_a_large_corpus_are_measured_sequentially(rng, x64, corpus, monkeypatch):
    monkeypatch.setattr(layout, "LARGE", 1)
    corpus, scores = corpus(), rng.normal(size=(3, 12))
    assert corpus.bags.is_large
    found = jax.jit(jax.vmap(lambda a: attention_entropy(corpus, a)))(scores)
    for lane in range(3):
        np.testing.assert_allclose(found[lane], list(by_token(corpus, scores[lane])), rtol=1e-12, atol=1e-14)


def test_entropy_metrics_match_their_definition(x64, corpus, show, draw, measure):
    corpus, model = corpus(3), ja.models.KeyQuery(dim=5, weights="normal")
    params = draw(model, corpus)
    found = measure(ja.probes.AttentionEntropy(), show(model, params, corpus))
    assert found.keys() == ja.probes.AttentionEntropy.labels.keys()
    expected = np.mean(list(by_token(corpus, np.asarray(params.E @ params.W @ params.p))))
    np.testing.assert_allclose(found["attention_entropy"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["attended_tokens"], np.exp(expected), rtol=1e-12)


def test_entropy_requires_attention_over_bags(applies):
    loss, vectors = ja.losses.DEFAULT, ja.data.Vectors(targets=np.ones(2), X=np.ones((2, 3, 4)), classes=2)
    assert applies(ja.probes.AttentionEntropy(), ja.models.OneLayer(dim=5), loss, ("p",))
    assert not applies(ja.probes.AttentionEntropy(), ja.models.TwoLayer(dim=5), loss, ("p",))
    assert not applies(ja.probes.AttentionEntropy(), ja.models.OneLayer(dim=5), loss, ("p",), vectors)


class Queries(ja.Model[ja.data.Vectors]):
    """Three queries q (3, d) over the tokens; the third has no attention in the first example."""

    takes = ja.data.Vectors

    def attention(self, params, data):
        scores = jnp.einsum("ntd,qd->nqt", data.X, params["q"])
        return jax.nn.softmax(scores, axis=-1).at[0, 2].set(jnp.nan)

    def outputs(self, params, data):
        return data.X.sum((1, 2))


@pytest.mark.parametrize("spread", [0.0, 3.0, 1e3])
def test_attended_probe_matches_a_loop_over_queries(rng, x64, measure, spread):
    X, q = rng.normal(size=(7, 5, 4)), spread * rng.normal(size=(3, 4))
    data = ja.data.Vectors(targets=jnp.ones(7, jnp.int32), X=jnp.asarray(X), classes=2)
    task = Task(Queries(), ja.losses.DEFAULT, ja.data.Splits(data))
    phase = ja.dynamics.Descent(name="all", train=["q"], optimizer="sgd", step_size=0.1, steps=1)
    found = measure(ja.probes.Attended(above=0.7), ja.probes.ProbeContext({"q": jnp.asarray(q)}, task, phase))
    for query in range(3):
        largest, positions, one = [], [], []
        for example in range(int(query == 2), 7):
            weights = np.exp(X[example] @ q[query] - (X[example] @ q[query]).max())
            weights /= weights.sum()
            largest.append(weights.max())
            positions.append(np.exp(-sum(w * np.log(w) for w in weights if w > 0)))
            one.append(weights.max() >= 0.7)
        np.testing.assert_allclose(found["largest_attention"][query], np.mean(largest), rtol=1e-12)
        np.testing.assert_allclose(found["attended_positions"][query], np.mean(positions), rtol=1e-12)
        assert found["selects_one"][query] == pytest.approx(np.mean(one))


def test_attended_probe_requires_a_model_with_attention():
    assert isinstance(Queries(), HasAttention)
    assert not isinstance(ja.models.OneLayer(dim=4), HasAttention)
