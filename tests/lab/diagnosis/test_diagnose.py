"""Planted models: E·v = α is detected, and random models stay in the null band."""

from fractions import Fraction

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.lab.diagnosis import diagnose
from jaxattn.lab.engine.programs import seed_keys
from jaxattn.lab.pages import layout
from jaxattn.lab.pages.layout import typeset

V, DIM = 60, 32
FAST = {"min_count": 5, "draws": 20, "resampled": 100}


@pytest.fixture(scope="module")
def corpus():
    return ja.data.independent(jax.random.key(0), vocab_size=V, relevant=24, length=12, sequences=400)


@pytest.fixture(scope="module")
def many():
    """A corpus with three classes."""
    return ja.data.independent(
        jax.random.key(0), vocab_size=V, relevant=24, length=12, sequences=402, num_classes=3
    )


def alpha_of(corpus):
    return np.asarray(ja.data.average_signed_frequency(corpus), np.float64)


@pytest.fixture(scope="module")
def alpha(corpus):
    return alpha_of(corpus)


def planted(scores, values, dim=4):
    """Build E, p and v with exactly these E·p and E·v."""
    E = np.zeros((len(scores), dim))
    E[:, 0], E[:, 1] = scores, values
    return E, np.eye(dim)[0], np.eye(dim)[1]


def row(found, quantity, statistic="Spearman, tokens"):
    table = found.quantities.set_index(["quantity", "statistic"])
    return table.loc[(quantity, statistic)]


@pytest.mark.more
def test_ideal_model_is_above_the_null_band(corpus, alpha):
    found = diagnose(*planted(np.abs(alpha), alpha), corpus, **FAST)
    for quantity in ("E·v against α", "E·p against |α|"):
        for statistic in ("Pearson, tokens", "Spearman, tokens", "Pearson, bins", "Spearman, bins"):
            here = row(found, quantity, statistic)
            np.testing.assert_allclose(here["value"], 1, rtol=0, atol=1e-9)
            # There is no interval at a boundary or over bins.
            assert np.isnan([here["low"], here["high"]]).all()
            assert here["verdict"] == "above the null band"
    assert "the head reads a token as evidence" in found.verdicts[0]


@pytest.mark.more
def test_reversed_model_is_below_the_null_band(corpus, alpha):
    found = diagnose(*planted(-np.abs(alpha), -alpha), corpus, **FAST)
    assert row(found, "E·v against α")["verdict"] == "below the null band"
    assert "no sign that the head" in found.verdicts[0]


@pytest.mark.more
def test_random_models_are_inside_the_null_band(corpus):
    inside = []
    for seed in range(12):
        params = ja.models.one_layer.init(jax.random.key(100 + seed), vocab_size=V, dim=DIM)
        found = diagnose(params.E, params.p, params.v, corpus, **(FAST | {"draws": 60, "resampled": 2}))
        inside.append(found.quantities["verdict"] == "inside the null band")
    assert np.mean(inside) == pytest.approx(0.95, abs=0.05)


@pytest.mark.more
def test_null_band_matches_independent_normal_samples(corpus):
    found = diagnose(*planted(np.arange(V), np.arange(V)), corpus, min_count=1, draws=400, resampled=2)
    here = row(found, "E·v against α", "Pearson, tokens")
    exact = stats.beta(V / 2 - 1, V / 2 - 1, loc=-1, scale=2).ppf([0.025, 0.975])
    np.testing.assert_allclose([here["null_low"], here["null_high"]], exact, rtol=0, atol=0.06)


@pytest.mark.more
def test_trained_model_is_above_the_null_band(corpus):
    start = ja.models.one_layer.init(jax.random.key(1), vocab_size=V, dim=256)
    embedded = ja.dynamics.one_step(start, corpus, step_size=200.0)
    sgd = ja.dynamics.Descent(name="sgd", train=["p"], optimizer="sgd", step_size=4.0, steps=300)
    params = ja.dynamics.run(sgd, ja.dynamics.Task(data=corpus), embedded).params
    found = diagnose(params.E, params.p, params.v, corpus, **FAST)
    spoken = found.quantities[found.quantities["statistic"].isin(["Spearman, tokens", "share"])]
    assert (spoken["verdict"].iloc[:-1] == "above the null band").all()
    # There are no ties, and no sentence about ties.
    assert (spoken["value"].iloc[-1], len(found.verdicts)) == (0, 5)


@pytest.mark.more
def test_one_gradient_step_writes_alpha_into_the_values(corpus, alpha):
    errors = []
    for dim in (64, 4096):
        found = diagnose(*planted(alpha, alpha, dim), corpus, **FAST)
        errors.append(1 - row(found, "E·v against α", "Pearson, tokens")["healthy"])
        assert np.isnan(row(found, "E·p against |α|")["healthy"])
    assert errors[1] < 1e-3
    assert 16 < errors[0] / errors[1] < 256  # squares of errors that fall like d^(-1/2): 64


def test_selected_tokens_match_a_loop(corpus, alpha, rng):
    scores = rng.normal(size=V)
    found = diagnose(*planted(scores, alpha), corpus, **(FAST | {"min_count": 1, "important": 0.4}))
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    best = [int(x[m][np.argmax(scores[x[m]])]) for x, m in zip(ids, mask, strict=True)]
    by_id = found.tokens.set_index("id")
    assert by_id["selected"].to_dict() == {s: best.count(s) for s in by_id.index}
    difference = np.abs(np.asarray(ja.data.posterior_difference(corpus)))
    share = row(found, "sequences that select an important token", "share")
    assert share["value"] == pytest.approx(np.mean(difference[best] >= 0.4), abs=1e-12)
    size = len(best)
    expected = stats.binomtest(round(share["value"] * size), size).proportion_ci(method="exact")
    np.testing.assert_allclose([share["low"], share["high"]], expected, rtol=1e-9)
    tokens = found.quantities[found.quantities["statistic"].str.endswith("tokens")].dropna()
    assert len(tokens)
    assert (tokens["low"] <= tokens["value"]).all()
    assert (tokens["value"] <= tokens["high"]).all()


@pytest.mark.more
def test_study_and_diagnosis_agree_on_the_share_of_important_tokens_selected(tmp_path):
    data = ja.data.Independent(vocab_size=V, relevant=24, length=12, sequences=400)
    phases = [
        ja.dynamics.OneStep(name="embed", step_size=200.0),
        ja.dynamics.Descent(name="query", train=["p"], optimizer="sgd", step_size=4.0, steps=40),
    ]
    settings = {"important": 0.4, "min_count": 70}
    study = ja.Study(
        name="both",
        seeds=1,
        data=data,
        model=ja.models.OneLayer(dim=DIM),
        phases=phases,
        probes=ja.Probes(**settings),
    )
    results = study.run(tmp_path / "run", quiet=True)
    params, corpus = results.params(seed=0), study.base.data.draw(seed_keys([0])[0][0]).train
    found = diagnose(params.E, params.p, params.v, corpus, draws=5, resampled=5, **settings)
    last = results.records[(results.records["phase"] == "query") & (results.records["step"] == 40)]
    last = last.set_index("metric")["value"]
    assert 0 < last["important_selected"] < 1
    assert row(found, "sequences that select an important token", "share")["value"] == pytest.approx(
        last["important_selected"], abs=1e-7
    )
    assert "(important: |posterior difference| ≥ 0.4, at least 70 occurrences)" in found.verdicts[4]


def test_uniform_attention_selects_no_tokens(corpus, alpha):
    found = diagnose(*planted(np.zeros(V), alpha), corpus, **FAST)
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    important = np.abs(np.asarray(ja.data.posterior_difference(corpus))) >= 0.5
    holds = np.mean([important[x[m]].any() for x, m in zip(ids, mask, strict=True)])
    assert row(found, "sequences that select an important token", "share")["value"] == 0
    tied = row(found, "sequences in which an important token ties for the highest score", "share")
    assert (tied["value"], tied["verdict"]) == (pytest.approx(holds), "above the null band")
    assert found.verdicts[-1].endswith("important tokens tie more than by chance")
    assert (found.tokens["selected"] == 0).all()


@pytest.mark.more
def test_models_with_several_classes_are_diagnosed(many):
    alpha = alpha_of(many)
    E = np.column_stack([np.abs(alpha).max(axis=1), alpha, np.zeros((V, 252))])
    p, v = np.eye(256)[0], np.eye(256)[:, 1:4]
    found = diagnose(E, p, v, many, **FAST)
    assert row(found, "E·v against α")["value"] == pytest.approx(1, abs=1e-9)
    assert row(found, "E·p against |α|")["value"] == pytest.approx(1, abs=1e-9)
    assert row(found, "E·v against α")["healthy"] > 0.9
    assert len(found.tokens) == 3 * found.facts["tokens that occur"]
    preferred = dict(found.tables(7))["Tokens with the largest E·p"]
    assert len(preferred) == len(set(preferred["token"])) == 7
    for title in ("Tokens with the largest E·p", "Tokens that most sequences select"):
        for shown in dict(found.tables(7))[title].itertuples():
            label, s = shown[3], int(shown.token)
            # The class with the largest share of the token's occurrences, and the numbers of that class.
            assert label == np.argmax(alpha[s])
            by_class = np.asarray(ja.data.class_counts(many))[s]
            assert by_class[label] == by_class.max()
            np.testing.assert_allclose(shown[4], alpha[s, label], rtol=1e-6)
            np.testing.assert_allclose(shown[7], E[s] @ v[:, label], rtol=1e-6)
    assert "E·v_{2}" in found.figure().caption or "class 2" in found.figure().caption
    pd.testing.assert_frame_equal(diagnose(E, p, v.T, many, **FAST).quantities, found.quantities)


@pytest.mark.more
def test_class_names_are_shown(corpus, alpha, tmp_path):
    E, p, v = planted(np.abs(alpha), alpha)
    named = diagnose(E, p, v, corpus.replace(class_names=("bad", "fine")), **FAST)
    for title in ("Tokens with the largest E·p", "Tokens that most sequences select"):
        shown = dict(named.tables(9))[title]
        assert shown["class"].tolist() == ["fine" if x > 0 else "bad" for x in shown["alpha"]]
        assert "class" not in dict(diagnose(E, p, v, corpus, **FAST).tables(9))[title]
    assert "(positive: class fine, negative: class bad)" in named.figure().caption
    paths = named.write(tmp_path, 3)
    assert set(pd.read_csv(paths[2])["class"]) == {"fine"}


def test_page_states_which_tokens_enter_the_correlations(corpus, alpha):
    found = diagnose(*planted(alpha, alpha), corpus, **(FAST | {"min_count": 90}))
    count = np.asarray(ja.data.token_counts(corpus))
    used, occur = (count >= 90).sum(), (count > 0).sum()
    assert 3 <= used < occur
    (title, _) = found.tables()[1]
    assert title == (
        f"Correlations with importance over {used} of {occur} tokens: those that occur at least 90 times "
        "(min_count)"
    )


@pytest.mark.more
def test_common_array_shapes_of_query_and_head_are_accepted(corpus, alpha):
    E, p, v = planted(np.abs(alpha), alpha)
    expected = diagnose(E, p, v, corpus, **FAST)
    two = np.stack([-v / 2, v / 2], axis=1)
    for query, head in ((p[None], v[None]), (p[:, None], v[:, None]), (p, two), (p, two.T)):
        pd.testing.assert_frame_equal(
            diagnose(E, query, head, corpus, **FAST).quantities, expected.quantities
        )


@pytest.mark.more
def test_square_head_is_not_transposed(many):
    alpha = alpha_of(many)
    turn = np.roll(np.eye(3), 1, axis=0)
    E, p = alpha @ turn.T, np.ones(3)
    assert row(diagnose(E, p, turn, many, **FAST), "E·v against α")["value"] == pytest.approx(1, abs=1e-9)
    assert row(diagnose(E, p, turn.T, many, **FAST), "E·v against α")["value"] < 0.99


@pytest.mark.more
def test_absent_tokens_are_excluded(alpha):
    lone = ja.data.from_sequences([[0, 1, 2], [2, 3], [3, 4], [0, 4]] * 3, [1, -1, 1, -1] * 3, vocab_size=9)
    rows = np.arange(9.0)
    found = diagnose(*planted(rows, rows), lone, tokens=list("abcdefghi"), min_count=1, draws=5, resampled=5)
    assert sorted(found.tokens["token"]) == list("abcde")
    assert found.facts["tokens that occur"] == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda E, p, v: (E[:-1], p, v), r"59 rows, but the corpus has V = 60"),
        (lambda E, p, v: (E[0], p, v), r"expected shape \(V, d\)"),
        (lambda E, p, v: (E, p[:-1], v), r"query \(3,\): expected \(4,\)"),
        (lambda E, p, v: (E, p, np.zeros((4, 3))), r"head \(4, 3\): expected \(4,\)"),
        (lambda E, p, v: (E, p, np.zeros((3, 4))), r"head \(3, 4\): expected \(4,\)"),
        (
            lambda E, p, v: (np.where(np.arange(V)[:, None] == 7, np.nan, E), p, v),
            r"embedding: contains NaN.*\(7, 0\)",
        ),
        (lambda E, p, v: (E, p, v * np.inf), r"head: contains NaN or inf at index \(0,\)"),
        (lambda E, p, v: (E, p * 1e200, v), r"query: contains 1e\+200 at index \(0,\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
def test_mismatched_input_raises_a_one_line_error(corpus, alpha, change, said):
    with pytest.raises(ja.InputError, match=said) as caught:
        diagnose(*change(*planted(alpha, alpha)), corpus, **FAST)
    assert "\n" not in str(caught.value)


def test_invalid_diagnosis_settings_are_rejected(corpus, alpha):
    with pytest.raises(ja.InputError, match="lower min_count"):
        diagnose(*planted(alpha, alpha), corpus, min_count=10**6)
    with pytest.raises(ja.InputError, match="2 names for V = 60"):
        diagnose(*planted(alpha, alpha), corpus, tokens=["a", "b"])
    with pytest.raises(ja.InputError, match="at least 1"):
        diagnose(*planted(alpha, alpha), corpus, draws=0)


def test_a_zero_model_has_undefined_correlations(corpus):
    found = diagnose(*planted(np.zeros(V), np.zeros(V)), corpus, **FAST)
    assert (found.quantities["verdict"][:16] == "not defined").all()


def test_write_creates_page_table_and_figures(corpus, alpha, tmp_path):
    found = diagnose(*planted(np.abs(alpha), alpha), corpus, tokens=[f"w{s}|" for s in range(V)], **FAST)
    paths = found.write(tmp_path / "new" / "folder", 3)
    assert [path.name for path in paths] == ["diagnosis.html", "diagnosis.md", "tokens.csv", "importance.svg"]
    page = paths[1].read_text()
    assert found.verdicts[4] in page
    assert "w" in found.tables(3)[2][1]["token"][0]
    pd.testing.assert_frame_equal(pd.read_csv(paths[2]), found.tokens, check_exact=False, check_dtype=False)
    assert b"<svg" in paths[3].read_bytes()


@pytest.mark.more
def test_attention_heads_are_measured_separately(corpus, alpha, tmp_path):
    E = np.column_stack([np.abs(alpha), alpha, -np.abs(alpha), np.zeros(V)])
    unit = np.eye(4)
    found = diagnose(E, unit[[0, 2]], unit[1], corpus, **FAST)
    for h, query in enumerate(unit[[0, 2]]):
        alone, own = diagnose(E, query, unit[1], corpus, **FAST), found.quantities["head"] == h
        pd.testing.assert_frame_equal(
            found.quantities[own].reset_index(drop=True), alone.quantities.assign(head=h)
        )
        of_head = found.tokens[found.tokens["head"] == h].reset_index(drop=True)
        pd.testing.assert_frame_equal(of_head, alone.tokens.assign(head=h))
        assert found.figure(h).caption == alone.figure().caption.replace(
            "posterior difference.", f"posterior difference, head {h}.", 1
        )
    assert found.facts["attention heads (H)"] == 2
    # E·v is shared by the heads, and listed once.
    assert sum(line.startswith("E·v against α") for line in found.verdicts) == 1
    assert "head 1, E·p against |α|: -1.000 is below the null band" in "\n".join(found.verdicts)
    (_, laid) = found.tables()[1]
    assert laid[laid["quantity"] == "E·v against α"]["head"].tolist() == ["all"] * 4
    assert {"importance_0.svg", "importance_1.svg"} <= {path.name for path in found.write(tmp_path)}


def test_separate_read_out_vectors_are_measured_and_ambiguous_shapes_are_rejected(corpus, alpha):
    E = np.column_stack([np.abs(alpha), alpha, -alpha, np.zeros(V)])
    unit, spoken = np.eye(4), []
    for head in (
        unit[[1, 2, 1]],
        unit[[1, 2, 1]][..., None],
        np.stack([-unit[[1, 2, 1]], unit[[1, 2, 1]]], 2),
    ):
        found = diagnose(E, unit[[0, 0, 3]], head, corpus, **FAST)
        values = found.quantities.set_index(["head", "quantity", "statistic"])["value"]
        spoken.append([values[h, "E·v against α", "Pearson, tokens"] for h in range(3)])
    np.testing.assert_allclose(spoken, [[1, -1, 1]] * 3, rtol=0, atol=1e-9)
    with pytest.raises(
        ja.InputError, match=r"the first axis could index attention heads or classes; pass \(2, 4, 1\)"
    ):
        diagnose(E, unit[:2], unit[1:3], corpus, **FAST)


@pytest.mark.more
def test_by_class_matches_correlations_with_alpha_for_each_class(many):
    many, alpha = many.replace(class_names=("sport", "war", "art")), alpha_of(many)
    used = np.asarray(ja.data.token_counts(many)) >= FAST["min_count"]
    rng = np.random.default_rng(3)
    values = alpha + np.array([0, 0.02, 0.2]) * rng.normal(size=alpha.shape)
    found = diagnose(np.column_stack([values, np.zeros(V)]), np.eye(4)[3], np.eye(4)[:, :3], many, **FAST)
    for k in range(3):
        own = found.by_class.query("`class` == @k and quantity == 'E·v against α'").set_index("statistic")
        expected = stats.pearsonr(alpha[used, k], values[used, k]).statistic
        assert own["value"]["Pearson, tokens"] == pytest.approx(expected, abs=1e-6)
        expected = stats.spearmanr(alpha[used, k], values[used, k]).statistic
        assert own["value"]["Spearman, tokens"] == pytest.approx(expected, abs=1e-6)
        low, high = own.loc["Pearson, tokens", ["low", "high"]]
        assert k == 0 or low < own["value"]["Pearson, tokens"] < high
    own = found.by_class.query("quantity == 'E·v against α' and statistic == 'Pearson, tokens'")["value"]
    assert row(found, "E·v against α", "Pearson, tokens")["value"] == pytest.approx(own.mean(), abs=1e-9)
    (title, laid) = found.tables()[2]
    assert title == "Correlations of E·v with importance for each class"
    assert laid["class"].unique().tolist() == ["sport", "war", "art"]
    speak = dict(found.tables())["Tokens with the largest E·v for each class"]
    best = np.argsort(-values, axis=0)[:5].T.ravel()
    assert [int(s) for s in speak["token"]] == best.tolist()
    assert "sport" in found.html()


@pytest.mark.more
def test_page_and_object_have_the_same_content(corpus, alpha, tmp_path):
    found = diagnose(*planted(np.abs(alpha), -alpha), corpus, **FAST)
    page = (found.write(tmp_path))[0].read_text(encoding="utf-8")
    assert page == found.html()
    assert '<span class="no">E·v against α: −1.000 is below' in page
    assert '<span class="yes">E·p against |α|: 1.000 is above' in page
    for title, table in found.tables():
        assert title in page
        for entry in layout.texts(table).iloc[-1]:
            assert typeset(entry) in page.replace("<wbr>", "")
    assert 'srcdoc="&lt;!DOCTYPE html&gt;' in found._repr_html_()
    assert repr(found).splitlines()[1:] == list(found.verdicts)
    with pytest.raises(ja.InputError, match="head: must be between 0 and 0, got 1"):
        found.figure(1)


def lines(found, word):
    return [line for line in found.verdicts if word in line]


def test_reason_for_undefined_statistics_is_one_line(corpus, alpha):
    found = diagnose(*planted(np.zeros(V), alpha), corpus, **FAST)
    (line,) = lines(found, "not defined")
    assert line.startswith(
        "E·p against |α|; E·p against |posterior difference|: not defined, because E·p is the same"
    )
    assert not lines(found, "nan")
    shown = dict(found.tables())[f"Correlations with importance over {found.over}"]
    assert not shown["quantity"].str.startswith("E·p").any()
    assert (shown["verdict"] != "not defined").all()
    assert len(shown) == 10
    found = diagnose(*planted(alpha, alpha), corpus, **(FAST | {"important": 1.1}))
    (line,) = lines(found, "not defined")
    assert line.endswith(
        "because no token is important (|posterior difference| ≥ 1.1, at least 5 occurrences)"
    )


@pytest.mark.parametrize("used", [2, 5, 19, 20])
def test_min_count_that_leaves_few_tokens_suggests_another(corpus, alpha, used):
    counts = sorted(np.asarray(ja.data.token_counts(corpus)), reverse=True)
    given = {"min_count": int(counts[used - 1])}
    lower = int(counts[19])
    if used < 3:
        with pytest.raises(ja.InputError, match=f"three are required; lower min_count to {lower}$"):
            diagnose(*planted(alpha, alpha), corpus, **(FAST | given))
        return
    found = diagnose(*planted(alpha, alpha), corpus, **(FAST | given))
    said = [
        f"min_count = {lower} includes {sum(x >= lower for x in counts)} of" in x
        for x in lines(found, "only")
    ]
    assert said == ([True] if given["min_count"] > lower else [])


@pytest.mark.more
def test_spearman_over_tokens_ties_equal_fractions():
    """Tokens occur a few times, in sequences of different lengths, so most fractions occur repeatedly."""
    rng = np.random.default_rng(3)
    sequences = [rng.integers(0, 40, length).tolist() for length in rng.choice([3, 6, 7, 9], 60)]
    labels = rng.choice([-1, 1], 60)
    corpus = ja.data.from_sequences(sequences, labels.tolist(), vocab_size=40)
    signed = [
        [(int(y), s.count(t), len(s)) for s, y in zip(sequences, labels, strict=True)] for t in range(40)
    ]
    counts = np.array([sum(n for _, n, _ in row) for row in signed])
    used = [t for t in range(40) if counts[t]]
    alpha = [abs(sum(Fraction(y * n, size) for y, n, size in signed[t])) for t in used]
    difference = [abs(Fraction(sum(y * n for y, n, _ in signed[t]), int(counts[t]))) for t in used]
    scores = rng.normal(size=40)
    found = diagnose(*planted(scores, scores), corpus, min_count=1, draws=2, resampled=2)
    for quantity, exact in (("|α|", alpha), ("|posterior difference|", difference)):
        assert len(set(exact)) < len(exact)
        ranks = np.unique(np.array(exact), return_inverse=True)[1]
        expected = stats.spearmanr(scores[used], ranks).statistic
        np.testing.assert_allclose(row(found, f"E·p against {quantity}")["value"], expected, atol=1e-12)
