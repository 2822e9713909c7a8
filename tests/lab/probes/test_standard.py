"""Standard probes, each compared with an explicit formula for one seed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.lab.probes.importance import token_columns

ONE_STEP = ja.dynamics.OneStep(name="embed", step_size=20.0)
QUERY = ja.dynamics.Descent(name="query", train=("p",), optimizer="sgd", step_size=0.1, steps=3)
LOSS = ja.losses.Classification()
TWENTY_STEPS = ja.dynamics.Descent(name="query", train=("p",), optimizer="sgd", step_size=0.1, steps=20)
FLOW = ja.dynamics.ExactFlow(name="flow", until_norm=2.0, points=9)
EVERY_FOUR = [0, 4, 8, 12, 16, 20]


@pytest.fixture
def seen(corpus, draw, x64):
    """Return a function that builds the context of a model on a corpus of K classes and a test corpus."""

    def look(model=None, classes=2, phase=QUERY, memory=None, test=True):
        train = corpus(classes)
        held_out = corpus(classes) if test else None
        params = draw(model := model or ja.models.OneLayer(dim=5), train)
        splits = ja.data.Splits(train, ja.data.token_statistics(train), held_out)
        return ja.probes.ProbeContext(params, Task(model, LOSS, splits), phase, memory)

    return look


def attention(scores, corpus):
    ids, mask = ja.models.reference.padded_sequences(corpus)
    return jax.nn.softmax(jnp.where(mask, scores[ids], -jnp.inf), axis=1), ids, mask


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.more)])
def test_fit_and_accuracy_match_explicit_formulas(seen, measure, classes):
    shown = seen(classes=classes)
    found = measure(ja.probes.Fit(), shown)
    params, train, test = shown.params, shown.data.train, shown.data.test
    outputs = jax.jit(ja.models.one_layer.outputs)
    logits = outputs(params, train)

    def from_query(p):
        return ja.losses.classification(
            ja.models.one_layer.outputs(params.replace(p=p), train), train.targets
        ).mean()

    loss, gradient = jax.jit(jax.value_and_grad(from_query))(params.p)
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-12)
    np.testing.assert_allclose(found["log_gradient_norm"], np.log(np.linalg.norm(gradient)), rtol=1e-10)
    np.testing.assert_allclose(found["p_norm"], np.linalg.norm(params.p), rtol=1e-12)
    chosen = np.where(logits > 0, 1, -1) if classes == 2 else np.argmax(logits, axis=1)
    found |= measure(ja.probes.Accuracy(), shown)
    assert found["train_accuracy"] == np.mean(chosen == np.asarray(train.targets))
    of_test = jax.jit(ja.losses.classification)(outputs(params, test), test.targets).mean()
    np.testing.assert_allclose(found["test_loss"], of_test, rtol=1e-12)
    assert "validation_loss" not in found
    without = seen(classes=classes, test=False)
    assert not {"test_loss", "test_accuracy"} & {
        *measure(ja.probes.Fit(), without),
        *measure(ja.probes.Accuracy(), without),
    }


@pytest.mark.parametrize("least", [1, 6])
@pytest.mark.more
def test_selected_matches_attention_on_important_tokens(seen, measure, least):
    shown = seen()
    found = measure(ja.probes.Selected(important=0.3, min_count=least), shown)
    train, scores = shown.data.train, shown.scores_and_values[0]
    tokens = shown.data.tokens
    large, count = np.abs(np.asarray(tokens.posterior_difference[:, 0])) >= 0.3, np.asarray(tokens.count)
    important = large & (count >= least)
    assert 0 < important.sum() <= large.sum() - (least > 1)
    q, ids, mask = attention(scores, train)
    np.testing.assert_allclose(found["important_mass"], (q * important[ids]).sum(1).mean(), rtol=1e-12)
    best = [
        ids[i][np.argmax(np.where(mask[i], np.asarray(scores)[ids[i]], -np.inf))] for i in range(len(ids))
    ]
    several = np.array([len(set(row[there])) > 1 for row, there in zip(np.asarray(ids), mask, strict=True)])
    assert found["important_selected"] == (important[best] & several).mean()
    assert found["important_tied"] == (important[best] & ~several).mean()
    highest = np.where(mask, np.asarray(scores)[ids], -np.inf).max(1)
    distinct = [
        len({int(s) for s, there in zip(row, present, strict=True) if there and scores[s] == top})
        for row, present, top in zip(ids, mask, highest, strict=True)
    ]
    assert found["selected_tokens"] == np.mean(distinct)


@pytest.mark.parametrize("model", [ja.models.KeyQuery(dim=5, weights="normal"), ja.models.Mlp(dim=5)])
def test_selected_uses_the_model_scores(seen, measure, model):
    """With a key-query matrix the scores are not E·p, and the selection follows the scores."""
    shown = seen(model)
    found = measure(ja.probes.Selected(important=0.3, min_count=1), shown)
    train, scores = shown.data.train, model.scores_and_values(shown.params)[0]
    chosen = ja.theory.selection_from_scores(scores, train)
    by_query = ja.theory.selection_from_scores(shown.params.E @ shown.params.p, train)
    assert bool((chosen.mask == by_query.mask).all()) == isinstance(model, ja.models.Mlp)
    important = np.abs(np.asarray(shown.data.tokens.posterior_difference[:, 0])) >= 0.3
    selects, tied = chosen.selects(train, important)
    assert (found["important_selected"], found["important_tied"]) == (selects.mean(), tied.mean())
    q, ids, _ = attention(scores, train)
    np.testing.assert_allclose(found["important_mass"], (q * important[ids]).sum(1).mean(), rtol=1e-12)


def test_uniform_attention_selects_no_token(x64, measure):
    """Token 0 indicates +1, token 1 indicates -1, and the other tokens no label."""
    corpus = ja.data.from_sequences(
        [[0, 2, 3], [1, 2, 3], [0, 2], [1, 3], [2, 3], [2, 3]], [1, -1] * 3, vocab_size=4
    )
    model, splits, found = (
        ja.models.OneLayer(dim=4),
        ja.data.Splits(corpus, ja.data.token_statistics(corpus)),
        [],
    )
    for scores in ([0.0, 0, 0, 0], [1.0, 1, 0, 0], [1.0, 1, 1, 0], [0.0, 0, 1, 1]):
        params = ja.models.one_layer.Params(jnp.eye(4), jnp.asarray(scores), jnp.ones(4))
        found.append(
            measure(
                ja.probes.Selected(min_count=1),
                ja.probes.ProbeContext(params, Task(model, LOSS, splits), QUERY),
            )
        )
    np.testing.assert_allclose([x["important_selected"] for x in found], [0, 4 / 6, 1 / 6, 0], atol=1e-6)
    np.testing.assert_allclose([x["important_tied"] for x in found], [4 / 6, 0, 3 / 6, 0], atol=1e-6)
    # 14/6 has more digits in float64 than in float32.
    np.testing.assert_allclose(found[0]["selected_tokens"], 14 / 6, rtol=1e-15)
    without = measure(
        ja.probes.Selected(min_count=3), ja.probes.ProbeContext(params, Task(model, LOSS, splits), QUERY)
    )
    assert all(np.isnan(without[f"important_{x}"]) for x in ("mass", "selected", "tied"))


def test_selected_requires_attention_over_tokens(applies):
    assert not applies(ja.probes.Selected(), ja.models.TwoLayer(dim=5), LOSS, QUERY)
    assert not applies(ja.probes.Importance(), Bare(), LOSS, QUERY)
    assert applies(ja.probes.Selected(), ja.models.OneLayer(dim=5), LOSS, QUERY)
    vectors = ja.data.Vectors(targets=np.ones(2), X=np.ones((2, 3, 4)))
    assert not applies(ja.probes.Importance(), ja.models.OneLayer(dim=5), LOSS, QUERY, vectors)
    assert not applies(ja.probes.Accuracy(), ja.models.OneLayer(dim=5), LOSS, QUERY, vectors)


class Bare(ja.Model):
    """Model that only has outputs."""

    def init(self, key, like, *, dtype):
        return ja.models.OneLayer(dim=5).init(key, like, dtype=dtype)

    def outputs(self, params, corpus):
        return ja.models.one_layer.outputs(params, corpus)


@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.more), 3])
def test_importance_matches_scipy(seen, measure, classes):
    shown = seen(classes=classes)
    probe = ja.probes.Importance(bins=4, min_count=2)
    found = measure(probe, shown)
    tokens, (scores, values) = shown.data.tokens, shown.scores_and_values
    columns = tokens.posterior_difference.shape[1]
    values = np.asarray(values).reshape(-1, columns)
    count, difference = np.asarray(tokens.count), np.asarray(tokens.posterior_difference)
    frequent, present = count >= 2, count > 0
    np.testing.assert_allclose(
        found["spearman_Ev_tokens"],
        np.mean(
            [stats.spearmanr(values[frequent, k], difference[frequent, k]).statistic for k in range(columns)]
        ),
        rtol=1e-10,
    )
    for name, against in (
        ("signed", difference[frequent]),
        ("absolute", np.abs(difference[frequent]).max(axis=1, keepdims=True)),
    ):
        expected = [stats.spearmanr(np.asarray(scores)[frequent], x).statistic for x in against.T]
        np.testing.assert_allclose(found[f"spearman_Ep_{name}_tokens"], np.mean(expected), rtol=1e-10)
    np.testing.assert_allclose(
        found["correlation_Ev_alpha"],
        np.mean(
            [
                np.corrcoef(values[present, k], np.asarray(tokens.alpha)[present, k])[0, 1]
                for k in range(columns)
            ]
        ),
        rtol=1e-10,
    )
    edges = np.linspace(-1, 1, 5)
    # A value on an edge up to rounding belongs to the bin above the edge.
    difference = difference.round(9)
    means = []
    for k in range(columns):
        inside = np.isfinite(difference[:, k])
        sums, _ = np.histogram(difference[inside, k], edges, weights=np.asarray(scores)[inside])
        with np.errstate(invalid="ignore"):
            means.append(sums / np.histogram(difference[inside, k], edges)[0])
    np.testing.assert_allclose(found["Ep_bin"], np.mean(means, axis=0), rtol=1e-10)
    full = [np.isfinite(x) for x in means]
    by_class = [
        stats.spearmanr(np.arange(4)[use], x[use]).statistic for x, use in zip(means, full, strict=True)
    ]
    np.testing.assert_allclose(found["spearman_Ep_signed_bins"], np.mean(by_class), rtol=1e-10)
    size = np.abs(difference).max(axis=1)[present]
    sums, _ = np.histogram(size, 4, range=(0, 1), weights=np.asarray(scores)[present])
    numbers, _ = np.histogram(size, 4, range=(0, 1))
    full = numbers > 0
    expected = stats.spearmanr(np.arange(4)[full], sums[full] / numbers[full]).statistic
    np.testing.assert_allclose(found["spearman_Ep_absolute_bins"], expected, rtol=1e-10)
    assert "Ev_bin" not in measure(ja.probes.Importance(bins=0), shown)


class Given(Bare):
    """Model with given scores and values."""

    scores: jax.Array

    def scores_and_values(self, params):
        return self.scores, self.scores


def test_u_shaped_scores_correlate_only_with_the_absolute_difference(x64, measure):
    vocab_size = 40
    difference = (jnp.arange(vocab_size)[:, None] - 19.5) / 20
    statistics = ja.data.TokenStatistics(jnp.full(vocab_size, 60.0), difference, difference)
    shown = ja.probes.ProbeContext(
        None, Task(Given(scores=difference[:, 0] ** 2), LOSS, ja.data.Splits(None, statistics)), QUERY
    )
    found = measure(ja.probes.Importance(low=-1.0, high=1.0), shown)
    for over in ("bins", "tokens"):
        np.testing.assert_allclose(found[f"spearman_Ep_absolute_{over}"], 1, rtol=1e-12)
        np.testing.assert_allclose(found[f"spearman_Ep_signed_{over}"], 0, atol=1e-12)


def test_unseen_tokens_are_excluded_from_correlations(seen, measure):
    """Token 11 is not in the corpus, and its posterior difference is NaN."""
    shown = seen()
    none, one = (measure(ja.probes.Importance(bins=0, min_count=least), shown) for least in (0, 1))
    assert np.isfinite(none["spearman_Ep_absolute_tokens"])
    assert none["spearman_Ev_tokens"] == one["spearman_Ev_tokens"]


def test_token_columns_match_explicit_formulas(seen):
    shown = seen()
    columns = token_columns(shown)
    np.testing.assert_allclose(columns["Ep"], shown.params.E @ shown.params.p, rtol=1e-13)
    np.testing.assert_allclose(columns["Ev"][:, 0], shown.params.E @ shown.params.v, rtol=1e-13)
    np.testing.assert_array_equal(columns["alpha"], shown.data.tokens.alpha)


@pytest.mark.parametrize("classes", [2, 3])
def test_one_step_error_applies_only_to_one_step_phases(seen, applies, measure, classes):
    shown, probe = seen(phase=ONE_STEP, classes=classes), ja.probes.OneStepError()
    corpus = shown.data.train
    before = probe.remember(shown.params)
    moved = jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=20.0))(shown.params)
    found = measure(
        probe, ja.probes.ProbeContext(moved, Task(shown.model, LOSS, shown.data), ONE_STEP, before)
    )
    alpha = np.asarray(ja.data.average_signed_frequency(corpus))
    predicted = 20.0 * alpha / 2 if classes == 2 else 20.0 * alpha
    expected = np.abs(np.asarray((moved.E - shown.params.E) @ moved.v) - predicted).max() / 20.0
    np.testing.assert_allclose(found["one_step_error"], expected, rtol=1e-10)
    assert applies(probe, shown.model, LOSS, ONE_STEP)
    for model, loss, phase in (
        (ja.models.Mlp(dim=5), LOSS, ONE_STEP),
        (shown.model, ja.losses.Hinge(), ONE_STEP),
        (shown.model, LOSS, QUERY),
        (shown.model, LOSS, ja.dynamics.OneStep(name="embed", step_size=20.0, train=("E", "p"))),
    ):
        assert not applies(probe, model, loss, phase)


def test_shared_quantities_are_computed_once(seen):
    shown = seen()
    assert shown.loss_and_gradients is shown.loss_and_gradients
    assert shown.outputs(shown.data.train) is shown.outputs(shown.data.train)
    other = shown.with_memory(3)
    assert (other.memory, shown.memory) == (3, None)
    assert other.loss_and_gradients is shown.loss_and_gradients


def test_max_margin_direction_requires_phases_that_train_only_p(applies):
    probe, model = ja.probes.MaxMarginDirection(), ja.models.OneLayer(dim=5)
    assert applies(probe, model, LOSS, QUERY)
    assert not applies(probe, model, LOSS, ONE_STEP)
    assert not applies(probe, ja.models.KeyQuery(dim=5), LOSS, QUERY)

    class Forked(ja.models.OneLayer, frozen=True, kw_only=True):
        def scores_and_values(self, params):
            return -params.E @ params.p, params.E @ params.v

    assert not applies(probe, Forked(dim=5), LOSS, QUERY)
    assert set(probe.metrics) <= set(probe.labels)


@pytest.mark.parametrize(
    ("settings", "query", "embed"),
    [
        ({}, [0, 1, 3, 7, 20], [0, 1]),
        ({"per_decade": 0}, [0, 20], [0, 1]),
        ({"steps": (5, 1)}, [0, 1, 5, 20], [0, 1]),
        ({"steps": (0, 20)}, [0, 20], [0, 1]),
        ({"every": 4}, EVERY_FOUR, [0, 1]),
        ({"every": 15}, [0, 15, 20], [0, 1]),
        ({"every": 1}, list(range(21)), [0, 1]),
        ({"steps": {"query": (5,)}}, [0, 5, 20], [0, 1]),
        ({"every": {"query": 4}}, EVERY_FOUR, [0, 1]),
        ({"every": 4, "steps": {"query": (5,)}}, [0, 5, 20], [0, 1]),
        ({"every": {"query": 4}, "steps": (5,)}, EVERY_FOUR, [0, 1]),
        ({"every": {"embed": 1}, "steps": (5,)}, [0, 5, 20], [0, 1]),
    ],
)
def test_probe_steps_can_be_log_spaced_listed_or_regular(settings, query, embed):
    probes = ja.Probes(**{"per_decade": 2} | settings)
    assert probes.steps_of(TWENTY_STEPS) == query
    assert probes.steps_of(ONE_STEP) == embed


def test_flow_is_measured_at_every_row():
    assert ja.Probes().steps_of(FLOW) == list(range(9))
    assert ja.Probes(every=3).steps_of(FLOW) == [0, 3, 6, 8]


@pytest.mark.parametrize(
    ("probes", "said"),
    [
        ({"steps": [1, 30]}, "probes.steps: 30 is past the last step; the longest phase ends at step 20"),
        ({"steps": {"embed": [2]}}, "probes.steps.embed: 2 is past the last step; the phase ends at step 1"),
        ({"every": {"qury": 2}}, "probes.every.qury: no such phase; choose one of embed, query"),
        (
            {"every": 2, "steps": [1]},
            "probes.every: cannot be combined with probes.steps; remove one of them",
        ),
        ({"every": {"query": 2}, "steps": {"query": [1]}}, "probes.every.query: cannot be combined"),
        ({"every": 0}, r"probes.every: .*>= 1"),
        ({"steps": [-1]}, r"probes.steps\[0\]: .*>= 0"),
    ],
)
def test_invalid_probe_steps_raise_one_line_errors(study, probes, said):
    with pytest.raises(ja.InputError, match=said) as error:
        study(probes=probes)
    assert "\n" not in str(error.value)


def test_probe_steps_are_checked_for_every_cell(study):
    probes = {"steps": {"query": [15]}, "min_count": 1}
    assert len(study(probes=probes, axes={"phases.query.steps": [16, 20]}).cells) == 2
    with pytest.raises(ja.InputError, match="15 is past the last step; the phase ends at step 10"):
        study(probes=probes, axes={"phases.query.steps": [10, 20]})


def test_probe_steps_can_be_swept_and_overridden(study):
    cells = study(axes={"probes.every": [4, 10]}).cells
    query = cells[0].setting.phases[1]
    assert [cell.setting.probes.steps_of(query) for cell in cells] == [EVERY_FOUR, [0, 10, 20]]
