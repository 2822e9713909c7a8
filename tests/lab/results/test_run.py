"""Lookup of keys in a config."""

import dataclasses

import pytest

import jaxattn as ja
from jaxattn.lab.results.run import find_cell


def test_cell_is_found_by_a_dotted_key():
    tree = {"model": {"dim": 8}, "phases": [{"name": "joint", "steps": 3}, {"steps": 4}]}
    assert find_cell(tree, "model.dim") == 8
    assert find_cell(tree, "phases.joint.steps") == 3
    assert find_cell(tree, "phases.1.steps") == 4
    for nowhere in ("model.rank", "phases.other.steps", "phases.2", "model.dim.deeper"):
        assert find_cell(tree, nowhere) is None


class Counted(list):
    """A mapping that counts full iterations."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def test_lookup_in_many_cells_is_fast(results):
    run = results["dims"]
    cells = [
        entry | {"cell": k, "settings": {"model.dim": k}}
        for k in range(500)
        for entry in run.manifest["cells"][:1]
    ]
    counted = Counted(cells)
    many = dataclasses.replace(run, manifest=dict(run.manifest) | {"cells": counted})
    assert [many.lookup(k, "model.dim") for k in range(500)] == list(range(500))
    for k in range(500):
        many.settings(k)
        many.label("loss")
        assert many.axes == ["model.dim"]
    many.figure("curves")
    assert counted.times < 20
    other = dataclasses.replace(many, manifest=dict(many.manifest) | {"cells": cells[:3]})
    with pytest.raises(ja.InputError, match="has only cells 0 to 2"):
        other.lookup(3, "model.dim")
