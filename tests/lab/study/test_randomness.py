"""Random numbers that all seeds of a study take from seed 0."""

import itertools

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.study import randomness, seed

PARTS = ("data", "start", "batches")
SOME = [hold for k in range(4) for hold in itertools.combinations(PARTS, k)]
DATA = {"kind": "assumption1", "sequences": 12, "vocab_size": 10, "relevant": 4, "length": 5}
PHASE = {"kind": "descent", "name": "a", "train": ["E"], "optimizer": "sgd", "step_size": 0.1, "steps": 7}


def study(hold=(), seeds=(0, 2, 3), phase=None, **rest):
    settings = {"data": DATA, "model": {"kind": "one_layer", "dim": 4}, "probes": {"bins": 0}} | rest
    phases = [PHASE | ({"batch_size": 4} if phase is None else phase)]
    return ja.Study(name="held", seeds=seeds, phases=phases, hold=hold, **settings)


def own_keys(hold, number):
    """Derive the three keys of a seed without the package."""
    of = {}
    for part in PARTS:
        root = jax.random.fold_in(jax.random.key(0), 0 if part in hold else number)
        of[part] = jax.random.split(root)[0 if part == "data" else 1]
    return of


@pytest.mark.parametrize("hold", SOME)
def test_random_keys_held_fixed_are_those_of_seed_0(hold):
    for number in (0, 3):
        wanted = own_keys(hold, number)
        for part, key in randomness.keys(number, hold)._asdict().items():
            assert jax.random.key_data(key).tolist() == jax.random.key_data(wanted[part]).tolist()


@pytest.mark.parametrize("hold", SOME[:-1:3])
@pytest.mark.more
def test_run_with_fixed_keys_is_bitwise_identical_to_a_loop_over_seeds(hold, tmp_path):
    wanted = study(hold, chunk=1)
    found = wanted.run(tmp_path, quiet=True)
    setting = wanted.cells[0].setting

    @jax.jit
    def trained(data, start, batches):
        made = seed.draw_data(setting, data)
        params = seed.initial_params(setting, made, start, ())
        carried = seed.begin_phase(setting, 0, params, made, batches)
        return seed.advance(setting, 0, carried, made, 7).state.params

    for number in (0, 2, 3):
        expected = trained(**own_keys(hold, number))
        own = found.params(seed=number)
        np.testing.assert_array_equal(own.E, expected.E)
        np.testing.assert_array_equal(own.p, expected.p)
        own_data = found.dataset(seed=number).train
        drawn = jax.jit(setting.data.draw)(own_keys(hold, number)["data"]).train
        jax.tree.map(np.testing.assert_array_equal, own_data, drawn)


@pytest.mark.more
def test_vmapped_seeds_match_single_seeds(tmp_path):
    alone = study(["data"], chunk=1).run(tmp_path / "alone", quiet=True)
    together = study(["data"], chunk=3).run(tmp_path / "together", quiet=True)
    keys = ["seed", "phase", "step", "metric"]
    one, all_ = (x.records.sort_values(keys, ignore_index=True) for x in (alone, together))
    assert one[keys].equals(all_[keys])
    np.testing.assert_allclose(one["value"], all_["value"], rtol=1e-5, atol=1e-6)


def test_empty_hold_setting_does_not_change_the_study():
    one, other = study(), ja.Study.from_tables({k: x for k, x in study().tree.items() if k != "hold"})
    assert one.config == other.config
    assert one.config_hash == other.config_hash == one.cells[0].config_hash
    assert "hold" not in one.config
    assert study(["data"]).config_hash != one.config_hash
    assert study(["start", "data", "data"]).config_hash == study(["data", "start"]).config_hash


@pytest.mark.more
def test_blocks_can_hold_different_sources_of_randomness_fixed(tmp_path):
    blocks = {"all": {}, "start": {"hold": ["data", "batches"]}}
    found = study(blocks=blocks).run(tmp_path, quiet=True)
    assert found.cells["hold"].tolist() == ["", "data, batches"]
    assert found.held == (
        "cell 0: no random numbers are held; cell 1: data and batches held at seed 0; start varies over seeds"
    )
    losses = found.records.query("metric == 'loss' and step == 0").pivot(
        index="seed", columns="cell", values="value"
    )
    assert losses.loc[0, 0] == losses.loc[0, 1]
    assert losses.loc[2, 0] != losses.loc[2, 1]


@pytest.mark.more
def test_results_and_report_list_the_sources_of_randomness_held_fixed(tmp_path):
    found = study(["data"]).run(tmp_path, quiet=True)
    words = "data held at seed 0; start and batches vary over seeds"
    assert found.held == ja.load(tmp_path).held == words
    assert found.manifest["config"]["hold"] == ["data"]
    assert set(found.aggregate()["hold"]) == {"data"}
    assert f"all metrics: {words}" in (tmp_path / "report.html").read_text()
    assert words in found._repr_html_()


@pytest.mark.more
def test_unused_sources_of_randomness_are_not_listed_as_varying(tmp_path):
    found = study(["data"], phase={}).run(tmp_path, quiet=True)
    assert found.held == "data held at seed 0; start varies over seeds"


def test_shared_data_can_be_held_fixed():
    class Fixed(ja.SharedData, frozen=True, kw_only=True):
        def load(self, progress=None):
            raise NotImplementedError

    setting = study().cells[0].setting
    varies = randomness.varying(Fixed(), setting.phases, ["data"])
    assert varies == ["start", "batches"]


@pytest.mark.parametrize(
    ("hold", "phase", "words"),
    [
        (["dat"], None, "hold.*'dat'; did you mean 'data'"),
        (["data", "start", "batches"], None, "hold: all 3 seeds would give the same results"),
        (["data", "start"], {}, "hold: all 3 seeds would give the same results"),
        (["data"], {"fresh": 4}, "hold: 'data' does not fix the examples of phase 'a'.*add 'batches'"),
    ],
)
def test_invalid_hold_settings_raise_one_line_errors(hold, phase, words):
    with pytest.raises(ja.InputError, match=words):
        study(hold, phase=phase)


def test_one_seed_may_hold_all_randomness_fixed_and_fresh_data_may_hold_batches_fixed():
    study(PARTS, seeds=1)
    with pytest.raises(ja.InputError, match="all 2 seeds would give the same results"):
        study(PARTS, seeds=2)
    study(["data", "batches"], phase={"fresh": 4})
