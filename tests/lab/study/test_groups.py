"""Groups of cells that share a program: which cells they contain."""

import numpy as np
import pytest

from jaxattn.lab.study.groups import compile_groups
from jaxattn.lab.study.setting import padded_size
from jaxattn.losses import is_logistic


@pytest.fixture(scope="module")
def found(study):
    def make(**changes):
        return compile_groups(study(**{"dtype": "float64"} | changes).cells)

    return make


def test_cells_that_differ_only_in_traceable_settings_form_one_group(found):
    axes = {
        "model.dim": [8, 16],
        "phases.embed.step_size": [1.0, 2.0],
        "data.vocab_size": [20, 30],
        "probes.important": [0.5, 0.6],
    }
    groups = found(axes=axes)
    assert [[cell.number % 2 for cell in group.cells] for group in groups] == [[0] * 4, [1] * 4] * 2
    assert {group.setting.data.vocab_size for group in groups} == {32}
    assert set(groups[0].varying) == {"data.vocab_size", "phases.embed.step_size"}
    numbers = groups[0].hyperparameters(groups[0].cells)
    np.testing.assert_array_equal(numbers["phases", 0, "step_size"], [1, 1, 2, 2])
    np.testing.assert_array_equal(numbers["data", "vocab_size"], [20, 30, 20, 30])


def test_settings_that_change_the_program_split_groups(found):
    for axes in (
        {"phases.query.steps": [3, 4]},
        {"data.length": [4, 5]},
        {"phases.query.optimizer": ["sgd", "adam"]},
        {"probes.low": [-1.0, -0.5]},
        {"loss.kind": ["logistic", "hinge"]},
    ):
        assert len(found(axes=axes)) == 2


def test_numeric_options_of_starts_and_losses_are_vmapped(found):
    init = {"p": {"kind": "scaled", "scale": 1.0}}
    model = {"kind": "one_layer", "dim": 4, "init": init}
    (group,) = found(model=model, axes={"model.init.p.scale": [0.5, 2.0], "loss.smoothing": [0.1, 0.2]})
    assert set(group.varying) == {"model.init.p.scale", "loss.smoothing"}


def test_all_numbers_are_arguments_of_programs_except_for_zeros(found):
    changes = {"axes": {"phases.query.momentum": [0.0, 0.5, 0.9]}, "loss": {"smoothing": 0.1}}
    without, momentum = found(**changes)
    every = {("phases", 0, "step_size"), ("phases", 1, "step_size"), ("loss", "smoothing")}
    assert {path for path in without.dtypes() if path[0] != "data"} == every
    assert ("data", "vocab_size") in without.dtypes()
    assert momentum.dtypes().keys() - without.dtypes().keys() == {("phases", 1, "options", "momentum")}
    assert {str(dtype) for dtype in momentum.dtypes().values()} == {"float64", "int32"}


def test_padded_sizes_waste_little_and_do_not_depend_on_other_cells():
    sizes = {size: padded_size(size) for size in range(1, 5000)}
    assert all(size <= padded for size, padded in sizes.items())
    assert max(padded / size for size, padded in sizes.items() if size > 64) < 1.25
    assert [sizes[size] for size in (1, 16, 17, 60, 64, 65, 128, 129, 200, 1000, 1024, 1025)] == [
        16, 16, 32, 64, 64, 80, 128, 160, 224, 1024, 1024, 1280
    ]  # fmt: skip
    # Sizes that are padded once are not padded again, and there are few of them.
    assert all(padded_size(padded) == padded for padded in sizes.values())
    assert len({padded for size, padded in sizes.items() if 1024 < size <= 2048}) == 4


def test_cells_without_label_smoothing_keep_the_probes_of_the_logistic_loss(study):
    """Cells with and without smoothing do not share a program, because the one-step law requires none."""
    cells = study(axes={"loss.smoothing": [0.0, 0.1, 0.2]}).cells
    groups = compile_groups(cells)
    assert [[cell.number for cell in group.cells] for group in groups] == [[0], [1, 2]]
    assert [is_logistic(group.setting.loss) for group in groups] == [True, False]


def test_numeric_settings_of_custom_code_are_vmapped_unless_static(study):
    axes = {
        "model.sharpness": [1.0, 2.0],
        "model.init.v.value": [0.1, 0.2],
        "data.swapped": [0.1, 0.2],
        "loss.softness": [0.5, 1.0],
        "phases.clip.limit": [0.1, 0.2],
        "phases.wander.noise": [0.2, 0.1],
    }
    (group,) = compile_groups(study("own", axes=axes).cells)
    assert set(group.varying) == set(axes)
    tables = [{"kind": "mine.py:spread", "scale": 1.0}, {"kind": "mine.py:Travelled"}]
    probes = {"bins": 0, "min_count": 1, "own": tables}
    (group,) = compile_groups(study("own", probes=probes, axes={"probes.own.0.scale": [1.0, 3.0]}).cells)
    assert group.varying == ["probes.own.0.scale"]
    static = compile_groups(study("own", probes=probes, axes={"probes.own.1.order": [1.0, 2.0]}).cells)
    assert [len(group.cells) for group in static] == [1, 1]
