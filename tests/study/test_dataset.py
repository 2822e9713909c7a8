"""The data of a seed outside a run are those that the run's own probes saw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.errors import InputError

DATA = {"relevant": 8, "length": 6, "sequences": 30, "test_sequences": 20, "validation_sequences": 10}
PHASES = [ja.dynamics.OneStep(name="embed", step_size=1.0)]


def sum_train(params, corpus):
    """A number that changes if any count, label or place of the training corpus does."""
    return fingerprint(corpus)


def fingerprint(corpus):
    """Σ_X (1 + y_X) √(2 + X) Σ_s √(3 + s) count[X, s]: bags, in order, with their labels."""
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


def recorded(results, seed, cell):
    rows = results.records
    rows = rows[(rows["seed"] == seed) & (rows["cell"] == cell) & (rows["step"] == 1)]
    return rows.set_index("metric")["value"]


@pytest.mark.parametrize("cell", range(4))
def test_a_probe_of_the_run_sums_what_dataset_gives(ran, cell):
    study, results = ran
    folder = ja.load(results.directory)
    for seed in range(3):
        wanted = recorded(results, seed, cell)
        for splits in (study.dataset(seed, cell), results.dataset(seed, cell), folder.dataset(seed, cell)):
            assert splits.train.vocab_size == results.settings(cell)["data.vocab_size"]
            with jax.enable_x64(True):
                assert float(fingerprint(splits.train)) == pytest.approx(wanted["sum_train"], rel=1e-13)
    assert len({recorded(results, seed, cell)["sum_train"] for seed in range(3)}) == 3


@pytest.mark.parametrize("name", ["test", "validation"])
def test_held_out_losses_of_the_run_are_those_of_its_parameters_on_dataset(ran, name):
    study, results = ran
    with jax.enable_x64(True):
        for seed in range(3):
            corpus = getattr(study.dataset(seed, 1), name)
            logits = ja.models.one_layer.outputs(results.params(seed=seed, cell=1), corpus)
            found = float(ja.losses.logistic(logits, corpus.targets).mean())
            assert found == pytest.approx(recorded(results, seed, 1)[f"{name}_loss"], rel=1e-12)


def test_token_statistics_come_along_and_splits_may_be_missing():
    data = ja.data.Independent(vocab_size=24, relevant=8, length=6, sequences=30)
    splits = ja.Study(name="plain", data=data, model=ja.models.OneLayer(dim=4), phases=PHASES).dataset()
    assert splits.test is None
    assert splits.validation is None
    np.testing.assert_array_equal(splits.tokens.count, ja.data.token_counts(splits.train))


def shared(tmp_path):
    rows = ["pos,a fine film", "neg,a bad film", "pos,fine indeed", "neg,bad indeed"] * 3
    path = tmp_path / "reviews.csv"
    path.write_text("\n".join(["label,text", *rows]), encoding="utf-8")
    data = ja.data.Csv(path=str(path), text="text", label="label", min_count=1, labels=["neg", "pos"])
    return ja.Study(name="texts", data=data, model=ja.models.OneLayer(dim=4), phases=PHASES)


def test_shared_data_are_those_of_every_seed(tmp_path):
    study = shared(tmp_path)
    results = study.run(tmp_path / "run", quiet=True)
    one, other = study.dataset(0), results.dataset(0)
    assert one.train.num_examples == other.train.num_examples > 0
    assert float(fingerprint(one.train)) == float(fingerprint(study.dataset(5).train))
    with pytest.raises(InputError, match=r"data.kind = 'csv': .*Study.read\(SWEEP\).dataset"):
        ja.load(results.directory).dataset()


def test_what_is_not_there_is_said_in_one_line(ran):
    study, results = ran
    for ask, said in (
        (lambda: study.dataset(0, 4), "cell 4: the study has cells 0 to 3"),
        (lambda: study.dataset(-1), "seed -1: seeds are numbers from 0"),
        (lambda: results.dataset(7), "seed 7: the run has 0, 1, 2"),
        (lambda: results.dataset(0, 9), "cell 9: .* holds cells 0 to 3"),
    ):
        with pytest.raises(InputError, match=said):
            ask()
