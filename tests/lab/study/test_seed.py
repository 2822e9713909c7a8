"""Computation of one seed; agreement with the engine is tested with the engine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.study import seed


def test_keys_depend_only_on_the_seed():
    drawn = [np.asarray(jax.random.key_data(key)).tolist() for s in range(20) for key in seed.keys(s)[:2]]
    assert len({tuple(key) for key in drawn}) == 40
    again = jax.random.key_data(seed.keys(7)[1])
    np.testing.assert_array_equal(jax.jit(lambda s: jax.random.key_data(seed.keys(s)[1]))(7), again)


def test_padding_of_the_vocabulary_consists_of_zero_rows(study, tables):
    small, large = (study(data=tables()["data"] | {"vocab_size": v}).base for v in (20, 26))
    data_key, key, _ = seed.keys(3)
    like = jax.eval_shape(large.data.draw, data_key), jax.eval_shape(small.data.draw, data_key)
    padded = jax.jit(lambda used: seed.initial_params(large._replace(used=used), like[0], key, []))(20)
    own = jax.jit(lambda: seed.initial_params(small, like[1], key, []))()
    np.testing.assert_array_equal(padded.E[:20], own.E)
    np.testing.assert_array_equal(padded.E[20:], 0)
    np.testing.assert_array_equal(padded.p, own.p)


@pytest.mark.more
def test_run_seed_matches_explicit_steps(study, x64):
    setting = study(dtype="float64").base
    data_key, key, _ = seed.keys(0)
    corpora = jax.jit(lambda: seed.draw_data(setting, data_key))()
    params = jax.jit(lambda: seed.initial_params(setting, corpora, key, setting.data.tokens))()
    assert params.E.dtype == jnp.float64
    carried = seed.begin_phase(setting, 0, params, corpora, key)
    measure = jax.jit(lambda carried: seed.measure_probes(setting, 0, carried, corpora))
    before = seed.merged_metrics(setting, measure(carried), 0)
    assert "one_step_error" not in before
    after = jax.jit(lambda carried: seed.advance(setting, 0, carried, corpora, 1))(carried)
    found = seed.merged_metrics(setting, measure(after), 1)
    moved = jax.jit(lambda: ja.dynamics.one_step(params, corpora.train, step_size=50.0))()
    np.testing.assert_allclose(after.state.params.E, moved.E, rtol=1e-12)
    change = (moved.E - params.E) @ params.v
    np.testing.assert_allclose(
        found["one_step_error"], ja.theory.one_step_error(change, corpora.train, 50.0), rtol=1e-9
    )
    columns = seed.columns(setting, 0, moved, corpora)
    np.testing.assert_allclose(columns["Ep"], moved.E @ moved.p, rtol=1e-12)


@pytest.mark.more
def test_phase_starts_where_the_previous_phase_ends(study):
    found = list(seed.run_seed(study(probes={"per_decade": 1, "bins": 0}).base, 2))
    assert [(phase, step) for phase, step, _ in found][:2] == [("embed", 0), ("embed", 1)]
    assert [step for phase, step, _ in found if phase == "query"][-1] == 20
    # A phase starts where the previous one ended.
    ends = {(phase, step): metrics for phase, step, metrics in found}
    np.testing.assert_allclose(ends["query", 0]["loss"], ends["embed", 1]["loss"], rtol=1e-6)


@pytest.mark.more
def test_shared_corpus_is_the_same_for_every_seed(study, x64):
    wanted = study("own", data="mine.py:fixed", phases=study("own").tree["phases"][1:])
    first, second = (next(seed.run_seed(wanted.base, s))[2] for s in (0, 1))
    assert first["loss"] != second["loss"]
    assert "test_loss" not in first


def test_two_probes_with_the_same_name_raise(study, x64):
    own = ["mine.py:spread", {"kind": "mine.py:spread", "name": "loss"}]
    with pytest.raises(ja.InputError, match="probes: two probes measure 'loss'; rename one of the metrics"):
        jax.eval_shape(lambda: next(seed.run_seed(study("own", probes={"bins": 0, "own": own}).base, 0))[2])


@pytest.mark.more
def test_model_without_scores_and_values_has_no_token_table(study, x64):
    setting = study("own").base
    data_key, key, _ = seed.keys(0)
    corpora, params = jax.jit(
        lambda: (own := seed.draw_data(setting, data_key), seed.initial_params(setting, own, key, []))
    )()
    assert seed.columns(setting, 0, params, corpora)["Ev"].shape == (10, 1)
    bare = setting._replace(model=type("Bare", (ja.Model,), {})())
    assert seed.columns(bare, 0, params, corpora) == {}


@pytest.mark.more
def test_evaluating_on_a_sample_affects_losses_but_not_the_one_step_law(study, x64):
    """The one-step law is evaluated on the corpus of the step."""
    all_, some = (study(dtype="float64", probes={"sample": sample}).base for sample in (None, 7))
    data_key, key, _ = seed.keys(0)
    corpora = jax.jit(lambda: seed.draw_data(all_, data_key))()
    params = jax.jit(lambda: seed.initial_params(all_, corpora, key, all_.data.tokens))()

    def measured(setting):
        carried = seed.begin_phase(setting, 0, params, corpora, key)
        return seed.measure_probes(setting, 0, seed.advance(setting, 0, carried, corpora, 1), corpora)

    whole, found = (seed.merged_metrics(x, jax.jit(lambda x=x: measured(x))(), 1) for x in (all_, some))
    moved = ja.dynamics.one_step(params, corpora.train, step_size=50.0)
    part = corpora.train.take(jnp.arange(7) * corpora.train.num_examples // 7)
    np.testing.assert_allclose(found["loss"], ja.dynamics.loss(moved, part), rtol=1e-12)
    assert found["loss"] != whole["loss"]
    np.testing.assert_allclose(found["one_step_error"], whole["one_step_error"], rtol=1e-12)


DATA = {"relevant": 8, "length": 6, "sequences": 30, "test_sequences": 20, "validation_sequences": 10}
PHASES = [ja.dynamics.OneStep(name="embed", step_size=1.0)]


def sum_train(params, corpus):
    """Return a number that changes with any count, label or position of the training corpus."""
    return fingerprint(corpus)


def fingerprint(corpus):
    """Compute Σ_X (1 + y_X) √(2 + X) Σ_s √(3 + s) count[X, s] from bags, their order and their labels."""
    bags = corpus.bags
    each = (bags.count * jnp.sqrt(3.0 + bags.index)).sum(axis=1)
    weight = (2.0 + corpus.targets) * jnp.sqrt(2.0 + jnp.arange(corpus.num_examples))
    return (each * weight[jnp.minimum(bags.owner, corpus.num_examples - 1)]).sum()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    study = ja.Study(
        name="sums",
        seeds=3,
        dtype="float64",
        data=ja.data.Independent(vocab_size=24, label_noise=0.1, **DATA),
        model=ja.models.OneLayer(dim=4),
        phases=PHASES,
        probes=ja.Probes(bins=0, min_count=1, own=[sum_train]),
        axes={"data.label_noise": [0.1, 0.4], "data.vocab_size": [16, 24]},
    )
    return study, study.run(tmp_path_factory.mktemp("sums") / "run", quiet=True)


def recorded(results, number, cell):
    rows = results.records
    rows = rows[(rows["seed"] == number) & (rows["cell"] == cell) & (rows["step"] == 1)]
    return rows.set_index("metric")["value"]


@pytest.mark.more
@pytest.mark.parametrize("cell", range(4))
def test_dataset_returns_the_data_of_the_run(ran, cell):
    study, results = ran
    folder = ja.load(results.directory)
    for number in range(3):
        wanted = recorded(results, number, cell)
        for splits in (of.dataset(number, cell) for of in (study, results, folder)):
            assert splits.train.vocab_size == results.settings(cell)["data.vocab_size"]
            with jax.enable_x64(True):
                assert float(fingerprint(splits.train)) == pytest.approx(wanted["sum_train"], rel=1e-13)
    assert len({recorded(results, number, cell)["sum_train"] for number in range(3)}) == 3


@pytest.mark.more
@pytest.mark.parametrize("name", ["test", "validation"])
def test_dataset_reproduces_held_out_losses(ran, name):
    study, results = ran
    with jax.enable_x64(True):
        for number in range(3):
            corpus = getattr(study.dataset(number, 1), name)
            logits = ja.models.one_layer.outputs(results.params(seed=number, cell=1), corpus)
            found = float(ja.losses.logistic(logits, corpus.targets).mean())
            assert found == pytest.approx(recorded(results, number, 1)[f"{name}_loss"], rel=1e-12)


def test_dataset_includes_token_statistics():
    data = ja.data.Independent(vocab_size=24, relevant=8, length=6, sequences=30)
    splits = ja.Study(name="plain", data=data, model=ja.models.OneLayer(dim=4), phases=PHASES).dataset()
    assert splits.test is None
    assert splits.validation is None
    np.testing.assert_array_equal(splits.tokens.count, ja.data.token_counts(splits.train))


SHIFT = 0


def shifted(key, *, sequences: int, vocab_size: int = 7):
    """Sample sequences of tokens that are shifted by a global variable."""
    tokens = (jax.random.randint(key, (sequences, 3), 0, vocab_size) + SHIFT) % vocab_size
    labels = jnp.where(tokens[:, 0] < 3, 1, -1)
    return ja.data.from_draws(tokens, labels, vocab_size=vocab_size, num_classes=2)


def test_dataset_follows_changes_of_custom_code(monkeypatch):
    """The same seed, so the counts of tokens are those of before, shifted."""

    def counts():
        study = ja.Study(
            name="custom",
            data={"kind": shifted, "sequences": 20},
            model=ja.models.OneLayer(dim=4),
            phases=PHASES,
        )
        return np.asarray(study.dataset().tokens.count)

    before = counts()
    monkeypatch.setitem(globals(), "SHIFT", 2)
    after = counts()
    assert (before != after).any()
    np.testing.assert_array_equal(after, np.roll(before, 2))


def test_dataset_follows_changes_of_the_files_of_custom_code(tmp_path):
    path = tmp_path / "shift.npy"

    def read(key, *, sequences: int, file: ja.FilePath):
        """Sample sequences of tokens that are shifted by a number in a file."""
        tokens = (jax.random.randint(key, (sequences, 3), 0, 7) + np.load(file)) % 7
        return ja.data.from_draws(tokens, jnp.ones(sequences, int), vocab_size=7, num_classes=2)

    def counts(shift):
        np.save(path, shift)
        data = {"kind": read, "sequences": 20, "file": str(path)}
        study = ja.Study(name="custom", data=data, model=ja.models.OneLayer(dim=4), phases=PHASES)
        return np.asarray(study.dataset().tokens.count)

    np.testing.assert_array_equal(counts(3), np.roll(counts(0), 3))


def shared(tmp_path):
    rows = ["pos,a fine film", "neg,a bad film", "pos,fine indeed", "neg,bad indeed"] * 3
    path = tmp_path / "reviews.csv"
    path.write_text("\n".join(["label,text", *rows]), encoding="utf-8")
    data = ja.texts.Csv(path=str(path), text="text", label="label", min_count=1, labels=["neg", "pos"])
    return ja.Study(name="texts", data=data, model=ja.models.OneLayer(dim=4), phases=PHASES)


@pytest.mark.more
def test_dataset_returns_shared_data(tmp_path):
    study = shared(tmp_path)
    results = study.run(tmp_path / "run", quiet=True)
    one, other = study.dataset(0), results.dataset(0)
    assert one.train.num_examples == other.train.num_examples > 0
    assert float(fingerprint(one.train)) == float(fingerprint(study.dataset(5).train))
    with pytest.raises(ja.InputError, match=r"data.kind = 'csv': .*Study.read\(SWEEP\).dataset"):
        ja.load(results.directory).dataset()


@pytest.mark.more
def test_invalid_cell_or_seed_raises_a_one_line_error(ran):
    study, results = ran
    for ask, said in (
        (lambda: study.dataset(0, 4), "cell 4: the study has cells 0 to 3"),
        (lambda: study.dataset(-1), "seed -1: seeds must be integers from 0"),
        (lambda: results.dataset(7), "seed 7: not in the run; choose one of 0, 1, 2"),
        (lambda: results.dataset(0, 9), "cell 9: .* has only cells 0 to 3"),
    ):
        with pytest.raises(ja.InputError, match=said):
            ask()


def minibatch_study():
    return ja.Study(
        name="batches",
        data=ja.data.Assumption1(vocab_size=12, relevant=4, length=3, sequences=10),
        model=ja.models.OneLayer(dim=5),
        phases=[
            ja.dynamics.OneStep(name="embed", step_size=2.0),
            ja.dynamics.Descent(
                name="query", train=("p",), optimizer="sgd", step_size=0.5, steps=7, batch_size=3
            ),
        ],
        probes=ja.Probes(per_decade=0, steps={"query": (2,)}, tokens=False),
        dtype="float64",
        seeds=2,
    )


def test_minibatches_and_trajectory_reproduce_a_run_by_hand():
    """A loop over the minibatches gives the parameters at every step; the next test has those of a run."""
    own = minibatch_study()
    batches, trajectory = own.minibatches(1), list(own.trajectory(1))
    assert batches.shape == (7, 3)
    assert [place[:2] for place in trajectory] == [
        ("embed", 0),
        ("embed", 1),
        ("query", 0),
        ("query", 2),
        ("query", 7),
    ]
    counts = np.asarray(own.dataset(1).train.counts(), float)
    labels = np.asarray(own.dataset(1).train.targets)
    at = {place[:2]: place[2] for place in trajectory}
    E, v = np.asarray(at["embed", 1].E), np.asarray(at["embed", 1].v)
    p = np.asarray(at["embed", 1].p)
    for step, batch in enumerate(batches):
        if step == 2:
            np.testing.assert_allclose(at["query", 2].p, p, rtol=1e-12, atol=1e-15)
        gradient = np.zeros_like(p)
        for k in batch:
            q = counts[k] * np.exp(E @ p)
            q /= q.sum()
            f = q @ E @ v
            gradient -= labels[k] / (1 + np.exp(labels[k] * f)) * (q * (E @ v - f)) @ E / len(batch)
        p = p - 0.5 * gradient
    np.testing.assert_allclose(at["query", 7].p, p, rtol=1e-12, atol=1e-15)
    for wrong, message in (
        ({"phase": "embed"}, "set batch_size"),
        ({"phase": "none"}, "no such phase"),
        ({"cell": 1}, "cell 1"),
    ):
        with pytest.raises(ja.InputError, match=message):
            own.minibatches(**wrong)


@pytest.mark.more
def test_a_run_ends_where_its_trajectory_ends(tmp_path):
    own = minibatch_study()
    *_, (_, _, params) = own.trajectory(1)
    found = own.run(tmp_path / "results", quiet=True, report=False).params(seed=1)
    np.testing.assert_allclose(found.p, params.p, rtol=1e-12, atol=1e-15)
