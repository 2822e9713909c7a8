import jax.numpy as jnp

from jaxattn.study.hyperparameters import (
    VOCAB_SIZE,
    hyperparameters,
    pads_vocabulary,
    used_tokens,
    with_hyperparameters,
)


def test_numbers_of_a_setting_are_listed_by_path(study):
    found = hyperparameters(study().base)
    assert found == {
        ("data", "label_noise"): 0.0,
        ("data", "max_posterior_difference"): 0.9,
        ("loss", "smoothing"): 0.0,
        ("phases", 0, "step_size"): 50.0,
        ("phases", 1, "step_size"): 0.1,
        VOCAB_SIZE: 20,
    }


def test_numbers_that_python_decides_by_are_none(study):
    found = hyperparameters(study("flow").base)
    assert not [path for path in found if path[0] == "phases" and path[1] == 1]


def test_numbers_of_own_code_are_listed_like_any_other(study):
    assert hyperparameters(study("own").base) == {
        ("data", "label_noise"): 0.0,
        ("data", "swapped"): 0.25,
        ("model", "sharpness"): 2.0,
        ("loss", "softness"): 0.5,
        ("starts", "v", "value"): 0.25,
        ("phases", 0, "step_size"): 0.5,
        ("phases", 0, "options", "limit"): 0.01,
        ("phases", 1, "step_size"): 0.1,
        ("phases", 1, "noise"): 0.01,
        ("probes", 0, "scale"): 3.0,
    }


def test_every_number_may_be_replaced_and_is_found_again(study):
    for name in ("small", "flow", "own"):
        setting = study(name).base
        wanted = {path: x + 1.5 for path, x in hyperparameters(setting).items() if path != VOCAB_SIZE}
        changed = hyperparameters(with_hyperparameters(setting, wanted))
        assert {path: changed[path] for path in wanted} == wanted
        assert hyperparameters(setting) != changed


def test_a_vocabulary_is_padded_where_generator_and_model_know_of_it(study):
    assert pads_vocabulary(study().base)
    assert not pads_vocabulary(study("own").base)
    assert not pads_vocabulary(study(data={"kind": "csv", "path": "x.csv"}).base)
    assert used_tokens({}) is None
    assert used_tokens({VOCAB_SIZE: jnp.int32(3)}) == 3
