"""Initial parameters, computed again from a study or a folder.

A first phase with step size 0 stores the parameters with which training began, as the engine computed them.
"""

import jax
import numpy as np
import pytest
from flax import linen

import jaxattn as ja
from jaxattn.lab import kinds

DATA = {"kind": "assumption1", "sequences": 12, "vocab_size": 10, "relevant": 4, "length": 5}
SGD = {"kind": "descent", "optimizer": "sgd", "step_size": 0.1, "steps": 3}
ADAM = SGD | {"optimizer": "adam"}


def study(train="E", then=SGD, **settings):
    still = {"kind": "one_step", "name": "still", "step_size": 0.0, "train": [train]}
    phases = [still, then | {"name": "moves", "train": [train]}]
    settings = {"data": DATA, "model": {"kind": "one_layer", "dim": 4}, "probes": {"bins": 0}} | settings
    return ja.Study(name="begins", seeds=(1, 3), phases=phases, **settings)


def assert_begins_with(results, cells=(0,), ulps=0):
    def agree(found, stored):
        # A batched and a single factorisation of the span differ in their last bits on some processors.
        atol = ulps * np.finfo(stored.dtype).eps * np.abs(stored).max()
        np.testing.assert_allclose(found, stored, rtol=0, atol=atol)

    for cell in cells:
        for seed in (1, 3):
            found = results.params(cell=cell, seed=seed, step=0)
            stored = results.params(cell=cell, seed=seed, phase="still")
            moved = results.params(cell=cell, seed=seed)
            jax.tree.map(agree, found, stored)
            assert type(found) is type(stored)
            assert any(
                (a != b).any() for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(moved), strict=True)
            )


@pytest.mark.parametrize(
    ("kind", "then", "ulps"),
    [
        *(pytest.param(kind, SGD, 8, id=f"{kind} in the span") for kind in kinds.MODELS),
        pytest.param("one_layer", ADAM, 0, id="one_layer in the axes of R^d"),
    ],
)
@pytest.mark.more
def test_every_model_starts_from_its_recomputed_initial_parameters(kind, then, ulps, tmp_path):
    train = kinds.load_kind(kinds.MODELS[kind]).parameters[0]
    model = {"kind": kind, "dim": 40} | ({"heads": 2} if kind == "multi_head" else {})
    results = study(train, then, model=model).run(tmp_path, quiet=True)
    assert_begins_with(results, ulps=ulps)
    assert_begins_with(ja.load(tmp_path), ulps=ulps)


@pytest.mark.more
def test_initial_parameters_are_recomputed_for_swept_and_padded_cells(tmp_path):
    axes = {"data.vocab_size": [8, 11], "model.init.p.scale": [0.3, 0.7]}
    model = {"kind": "one_layer", "dim": 4, "init": {"p": {"scale": 0.5}}}
    results = study(model=model, axes=axes, dtype="float64").run(tmp_path, quiet=True)
    assert_begins_with(results, range(4))
    assert_begins_with(ja.load(tmp_path), range(4))
    assert len(results.params(cell=0, step=0).E) == 8


@pytest.mark.more
def test_initial_parameters_held_fixed_are_those_of_seed_0(tmp_path):
    results = study(hold=["start"]).run(tmp_path, quiet=True)
    assert_begins_with(results)
    np.testing.assert_array_equal(results.params(seed=1, step=0).E, results.params(seed=3, step=0).E)
    assert_begins_with(ja.load(tmp_path))


class Module(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1, name="head")(x)


class Points(ja.Dataset):
    X: jax.Array
    num_classes = 2


def points(key, *, sequences: int = 8):
    X = jax.random.normal(key, (sequences, 3))
    return Points(targets=jax.numpy.where(X[:, 0] > 0, 1, -1), X=X)


def module():
    return ja.models.from_linen(Module())


@pytest.mark.more
def test_initial_parameters_of_custom_models_require_the_study_object(tmp_path):
    results = study("head", ADAM, data=points, model=module).run(tmp_path, quiet=True)
    assert_begins_with(results)
    words = "step 0: data.kind: the study uses .*:points, and loading results never imports custom code; use"
    with pytest.raises(ja.InputError, match=words):
        ja.load(tmp_path).params(step=0)


@pytest.mark.more
def test_step_0_of_a_later_phase_is_the_end_of_the_previous_phase(tmp_path):
    results = study().run(tmp_path, quiet=True)
    found = results.params(phase="moves", step=0)
    jax.tree.map(np.testing.assert_array_equal, found, results.params(phase="still"))
    found = results.params(phase="still", step=0)
    jax.tree.map(np.testing.assert_array_equal, found, results.params(step=0))


@pytest.mark.more
def test_unavailable_steps_and_phases_raise_one_line_errors(tmp_path):
    results = study().run(tmp_path, quiet=True)
    with pytest.raises(ja.InputError, match="step 2: not stored; use step 0, or omit step"):
        results.params(step=2)
    with pytest.raises(ja.InputError, match="phase 'late': the checkpoint contains only still, moves"):
        results.params(step=0, phase="late")
