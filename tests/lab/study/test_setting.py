"""Settings: incompatible parts raise, and numbers that may vary are listed and can be replaced."""

import jax.numpy as jnp
import pytest

import jaxattn as ja
from jaxattn.lab.study.setting import (
    VOCAB_SIZE,
    hyperparameters,
    pads_vocabulary,
    with_hyperparameters,
)
from jaxattn.models.one_layer import OneLayerInSpan


def descent(train, **changes):
    phase = {"name": "all", "kind": "descent", "train": train, "optimizer": "adam", "step_size": 0.01}
    return phase | {"steps": 6} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": [descent(["W1"])]}, "train: W1: not a parameter of the model; known: E, p, v"),
        (
            {"model": {"kind": "mlp", "dim": 8}, "phases": [descent(["W1"])]},
            "train: W1: not a parameter of the model; did you mean 'W'",
        ),
        ({"phases": [descent(["p"], patience=3)]}, "no validation corpus; set data.validation_sequences"),
        (
            {"model": {"kind": "two_layer", "dim": 8}, "phases": [{"name": "flow", "kind": "exact_flow"}]},
            "requires scores that are linear in 'p' .* this model has none",
        ),
        (
            {"model": {"kind": "mlp", "dim": 8}, "probes": {"max_margin": True}},
            "probes.max_margin: the model has no scores that are linear in a parameter",
        ),
        ({"model": {"kind": "two_layers", "dim": 8}}, "did you mean 'two_layer'"),
        ({"phases": []}, "phases: expected 'array' of length >= 1"),
        ({"probes": {"own": "spread"}}, "own: expected a list, got 'spread'"),
        ({"model": {"kind": "one_layer", "dim": 4, "init": "zero"}}, "init: expected a table, got 'zero'"),
    ],
)
def test_incompatible_settings_raise(study, changes, message):
    with pytest.raises(ja.InputError, match=message) as caught:
        study(**changes)
    assert "\n" not in str(caught.value)


def test_max_margin_requires_a_phase_that_trains_only_p(study, tables):
    with pytest.raises(ja.InputError, match=r"probes.max_margin: no phase trains only p"):
        study("flow", phases=tables("flow")["phases"][:1])


@pytest.mark.more
def test_unknown_parameter_of_a_custom_model_raises(study, go_one, x64):
    """A custom model need not list its parameters; then the error is raised at initialisation."""
    with pytest.raises(ja.InputError, match=r"q: not a parameter of the model; known: E, W, p, v"):
        go_one(study("own", phases=[descent(["q"])]))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"phases": [descent(["p"])]}, "phases.all"),
        ({"phases": [descent(["p"], optimizer="sgd")], "probes": {"own": ["sharpness"]}}, r"probes.own\[0\]"),
        ({"phases": [descent(["p"], optimizer="sgd")], "probes": {"own": ["norms"]}}, None),
        ({"phases": [descent(["E", "p"], optimizer="sgd", batch_size=5)]}, None),
    ],
)
def test_settings_that_depend_on_coordinate_axes_prevent_reduction_to_the_span(study, changes, place):
    def model(dim, **more):
        return {"kind": "one_layer", "dim": dim} | more

    made = study(model=model(64), **changes).base.model
    assert isinstance(made, OneLayerInSpan) == (place is None)
    if place is None:
        assert study(model=model("inf", init={"p": "zero"}), **changes).base.model.dim == "inf"
        return
    with pytest.raises(ja.InputError, match=f"model.dim: 'inf', but {place} depends on the axes"):
        study(model=model("inf"), **changes)


def test_embeddings_read_from_a_file_require_a_finite_dim(study):
    model = {"kind": "one_layer", "dim": "inf", "init": {"E": {"file": "glove.npy"}}}
    with pytest.raises(ja.InputError, match=r"'inf', but model.init.E depends on the axes"):
        study(model=model, phases=[descent(["p"], optimizer="sgd")])


def test_model_without_span_support_requires_a_finite_dim(study):
    with pytest.raises(ja.InputError, match="dim"):
        study(model={"kind": "mlp", "dim": "inf"}, phases=[descent(["p"], optimizer="sgd")])


@pytest.fixture
def go_one():
    from jaxattn.lab.study import seed

    return lambda study: next(seed.run_seed(study.base, 0))


def test_tables_include_defaults_and_recreate_the_setting(study):
    from jaxattn.lab.study.reader import Reader

    for name in ("small", "flow", "own"):
        wanted = study(name)
        again = Reader(wanted.names).read(wanted.cells[0].tables)
        assert again.tables == wanted.cells[0].tables
        assert again.setting.phases == wanted.base.phases
        assert again.setting.model == wanted.base.model


def test_hyperparameters_are_listed_by_path(study):
    found = hyperparameters(study().base)
    assert found == {
        ("data", "max_posterior_difference"): 0.9,
        ("phases", 0, "step_size"): 50.0,
        ("phases", 1, "step_size"): 0.1,
        VOCAB_SIZE: 20,
    }
    # Zeros switch something off.
    assert ("loss", "smoothing") in hyperparameters(study(loss={"smoothing": 0.1}).base)


def test_static_settings_are_not_hyperparameters(study):
    found = hyperparameters(study("flow").base)
    assert not [path for path in found if path[0] == "phases" and path[1] == 1]


def test_numeric_settings_of_custom_code_are_hyperparameters(study):
    assert hyperparameters(study("own").base) == {
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


def test_hyperparameters_can_be_replaced(study):
    for name in ("small", "flow", "own"):
        setting = study(name).base
        wanted = {path: 0.9 * x for path, x in hyperparameters(setting).items() if path != VOCAB_SIZE}
        changed = hyperparameters(with_hyperparameters(setting, wanted))
        assert {path: changed[path] for path in wanted} == wanted
        assert hyperparameters(setting) != changed


def test_vocabulary_is_padded_if_generator_and_model_support_it(study):
    assert pads_vocabulary(study().base)
    assert not pads_vocabulary(study("own").base)
    assert not pads_vocabulary(study(data={"kind": "csv", "path": "x.csv"}).base)
    assert study().base.used is None
    assert with_hyperparameters(study().base, {VOCAB_SIZE: jnp.int32(3)}).used == 3
