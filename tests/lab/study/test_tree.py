import functools

import pytest

import jaxattn as ja
from jaxattn.lab.study.tree import (
    assign,
    check_values,
    flatten,
    location_of_entry,
    merge,
    number_entries,
    parse,
)


def test_dotted_keys_address_entries_of_tables_and_lists():
    tree = {"phases": [{"name": "embed"}, {"name": "query", "steps": 3}], "model": {"dim": 4}}
    made = assign(tree, "phases.query.steps", 5)
    made = assign(made, "phases.0.step_size", 1.0)
    made = assign(made, "model.init.p.scale", 2.0)
    made = assign(made, "axes.model.dim", [1, 2])
    assert tree == {"phases": [{"name": "embed"}, {"name": "query", "steps": 3}], "model": {"dim": 4}}
    assert made == {
        "phases": [{"name": "embed", "step_size": 1.0}, {"name": "query", "steps": 5}],
        "model": {"dim": 4, "init": {"p": {"scale": 2.0}}},
        "axes": {"model.dim": [1, 2]},
    }


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "phases.other.steps",
            "phases.other.steps: unknown entry 'other'; expected a name, or an index from 0 to 0",
        ),
        (
            "phases.embd.steps",
            "unknown entry 'embd'; expected a name, or an index from 0 to 0; did you mean 'embed'?",
        ),
        ("phases.7", "unknown entry '7'; expected a name, or an index from 0 to 0; known: embed"),
        ("name.deep", "'name' is a plain value"),
        ("name.deep.er", "the value before 'deep' is not a table"),
    ],
)
def test_invalid_dotted_keys_raise(key, message):
    with pytest.raises(ja.InputError, match=message):
        assign({"name": "x", "phases": [{"name": "embed"}]}, key, 1)


def test_merge_replaces_tables_of_a_different_kind():
    base = {"data": {"kind": "a", "length": 3}, "phases": [{"name": "one", "kind": "x", "steps": 1}]}
    merged = merge(base, {"data": {"length": 4}, "phases": {"one": {"kind": "y", "points": 2}}, "seeds": 3})
    assert merged == {
        "data": {"kind": "a", "length": 4},
        "phases": [{"name": "one", "kind": "y", "points": 2}],
        "seeds": 3,
    }
    assert base["data"]["length"] == 3
    assert base["phases"][0]["kind"] == "x"
    assert merge(base, {"data": {"kind": "b"}})["data"] == {"kind": "b"}


def test_merge_keeps_settings_common_to_both_kinds():
    asked = []

    def keys(path, kind):
        asked.append((location_of_entry(path), kind))
        return {"length", "dim"}

    base = {"data": {"kind": "a", "length": 3, "width": 2}, "model": {"kind": "m", "dim": 4}}
    changes = {"data": {"kind": "b", "depth": 1}, "model": {"dim": 5}}
    merged = merge(base, changes, keys)
    assert merged == {"data": {"kind": "b", "length": 3, "depth": 1}, "model": {"kind": "m", "dim": 5}}
    assert asked == [("data", "b")]
    blocks = {"blocks": {"x": {"probes": {"own": [{"kind": "a", "length": 3, "width": 1}]}}}}
    changed = merge(blocks, {"blocks": {"x": {"probes": {"own": {"0": {"kind": "b"}}}}}}, keys)
    assert changed["blocks"]["x"]["probes"]["own"] == [{"kind": "b", "length": 3}]
    assert asked[1:] == [("probes.own", "b")]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": [1.0, float("inf")]}}, r"a.b\[1\]: inf is not allowed here; use a finite number"),
        ({"a": float("nan")}, "a: nan is not allowed here"),
        (functools.reduce(lambda tree, k: {"x": tree}, range(60), 1), r".*: nested more than 50 levels deep"),
    ],
)
def test_nonfinite_numbers_and_deep_tables_raise(tree, message):
    with pytest.raises(ja.InputError, match=message):
        check_values(tree)
    check_values({"a": [1e308, -5, "inf", True]})
    with pytest.raises(ja.InputError, match="nested more than 50 levels deep"):
        assign({}, ".".join("x" * 60), 1)


def test_flatten_does_not_split_leaf_tables():
    nested = {"model": {"dim": {"low": 1, "high": 2}}, "a": {"b": {"c": 3}}}
    assert flatten(nested, leaves=("low", "high")) == {"model.dim": {"low": 1, "high": 2}, "a.b.c": 3}


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("1e3", 1000.0), ("[1, 2]", [1, 2]), ("sgd", "sgd"), ("'x'", "x"), ("", "")]
)
def test_parse_returns_invalid_toml_as_a_string(text, value):
    assert parse(text) == value


def test_none_removes_a_key_or_an_entry():
    tree = {"data": {"path": "x", "columns": ["a", "b"]}, "phases": [{"name": "one"}, {"name": "two"}]}
    assert assign(tree, "data.columns", None) == tree | {"data": {"path": "x"}}
    assert assign(tree, "phases.one", None) == tree | {"phases": [{"name": "two"}]}
    grid = {"axes": {"model.dim": [1]}, "blocks": {"b": {"halton": {"points": 3, "axes": {"a.b": {}}}}}}
    assert assign(grid, "axes.model.dim", None) == grid | {"axes": {}}
    assert assign(grid, "blocks.b.halton.axes.a.b", None)["blocks"]["b"]["halton"]["axes"] == {}
    assert tree["data"]["columns"] == ["a", "b"]
    for key in ("data.colums", "probes.bins"):
        with pytest.raises(ja.InputError, match=f"{key}: not set, so there is nothing to remove"):
            assign(tree, key, None)


def test_list_entries_are_addressed_by_index_or_name():
    tree = {"phases": [{"name": "one"}, {"name": "two"}], "probes": {"own": ["moment"]}}
    for key, number in (
        ("phases.two.steps", "phases.1.steps"),
        ("phases.1.steps", "phases.1.steps"),
        ("probes.own.0.power", "probes.own.0.power"),
        ("phases.three", "phases.three"),
        ("model.dim.deep", "model.dim.deep"),
    ):
        assert number_entries(tree, key) == number
