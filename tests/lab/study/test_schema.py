"""The JSON schema of sweep files, compared with sweep files and with the reader."""

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from jaxattn.lab import kinds
from jaxattn.lab.study.schema import sweep_schema
from jaxattn.lab.study.tree import merge

ROOT = Path(__file__).parents[3]
SHIPPED = [
    path
    for folder in ("sweeps", "jaxattn/lab/books/template")
    for path in sorted((ROOT / folder).glob("**/*.toml"))
    if path.name not in ("book.toml", "item.toml")
]


@pytest.fixture(scope="module")
def made():
    return json.loads(json.dumps(sweep_schema()))


@pytest.fixture(scope="module")
def validator(made):
    kind = jsonschema.validators.validator_for(made, default=jsonschema.Draft202012Validator)
    kind.check_schema(made)
    return kind(made)


def test_schema_accepts_shipped_sweeps(validator):
    assert SHIPPED
    for path in SHIPPED:
        sweep = tomllib.loads(path.read_text(encoding="utf-8"))
        assert [error.message for error in validator.iter_errors(sweep)] == [], path


@pytest.mark.parametrize(
    ("line", "is_valid"),
    [
        ("", True),
        ("axes.model.dim = [8, 16]", True),
        ('axes."model.dim" = [8]', True),
        ("axes.model.dim = []", False),
        ("axes.model.dim = 8", False),
        ("zip.phases.query.step_size = [0.1]", True),
        ("halton.points = 3\nhalton.axes.model.dim = {low = 1, high = 8, integer = true}", True),
        ("halton.points = 3\nhalton.axes.model.dim = {low = 1, hihg = 8}", False),
        ("exclude = [{model.dim = [8, 16]}]", True),
        ("model.init.E.scale = 0.5", True),
        ("model.dims = 8", False),
        ("data.vocab_size = -3", False),
        ("seed = 3", False),
        ("blocks.wide.model.dim = 64", True),
        ('blocks.other.phases.query = {kind = "log_descent", method = "polyak"}', True),
        ('blocks.other.phases.query = {kind = "mine.py:Steps", method = 3}', True),
        ("blocks.other.model.init.E.scale = 0.5", True),
        ("blocks.other.model.init.E.scale = 'wide'", False),
        ("blocks.other.seeds = 3", False),
        ("blocks.other.model.dim = 'wide'", False),
    ],
)
def test_schema_accepts_valid_lines_and_rejects_invalid_ones(validator, tables, line, is_valid):
    assert validator.is_valid(merge(tables(), tomllib.loads(line))) == is_valid


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("", False),
        ('extends = "a.toml"', True),
        ('extends = "a.toml"\nphases.query.steps = 3\nmodel = "mlp"', True),
        ('extends = "a.toml"\nmodel.rotation = "of a model of the user"', True),
        ('extends = "a.toml"\nmodel.kind = "mpl"', False),
        ('extends = "a.toml"\nmodel.dim = "wide"', False),
        ('extends = "a.toml"\nseed = 3', False),
        ("extends = 3", False),
    ],
)
def test_schema_accepts_files_that_extend_another(validator, text, is_valid):
    assert validator.is_valid(tomllib.loads(text)) == is_valid


def choices(made, part):
    properties = made["$defs"]["Tables"]["properties"][part]
    return {
        table["properties"]["kind"]["const"]: table
        for table in (properties.get("items") or properties)["anyOf"]
        if "const" in table.get("properties", {}).get("kind", {})
    }


def test_schema_contains_every_kind_with_its_settings_and_defaults(made):
    models, phases = choices(made, "model"), choices(made, "phases")
    assert set(models) == set(kinds.MODELS)
    assert set(phases) == set(kinds.PHASES)
    flow = phases["exact_flow"]
    points = flow["properties"]["points"]
    assert {key: x for key, x in points.items() if key != "description"} == {
        "type": "integer",
        "minimum": 3,
        "default": 64,
    }
    assert flow["required"] == ["kind", "name"]
    assert not flow["additionalProperties"]
    # The options of an optimiser are those of optax.
    assert phases["descent"]["additionalProperties"]
    dim = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
    mlp, one_layer = (models[kind]["properties"]["dim"] for kind in ("mlp", "one_layer"))
    assert {key: x for key, x in mlp.items() if key != "description"} == dim
    assert one_layer["anyOf"] == [dim, {"enum": ["inf"]}]
    assert "scaled" in json.dumps(models["one_layer"]["properties"]["init"])


def test_schema_contains_the_descriptions_of_settings(made):
    texts = choices(made, "data")["csv"]["properties"]
    assert texts["columns"]["description"].startswith(
        "names of the fields, from left to right, for files without a header line"
    )
    assert texts["min_count"]["description"].startswith(
        "minimum number of occurrences of a word in the training split"
    )  # This setting is from the base class.
    probes = made["$defs"]["Tables"]["properties"]["probes"]["properties"]
    assert probes["min_count"]["description"].startswith(
        "minimum number of occurrences for a token to be included in correlations"
    )


def test_schema_allows_custom_code(made):
    for part in ("data", "model", "loss", "phases"):
        properties = made["$defs"]["Tables"]["properties"][part]
        every = (properties.get("items") or properties)["anyOf"]
        assert {"type": "string", "pattern": ":"} in [x.get("properties", {}).get("kind") for x in every]


def test_every_schema_reference_is_defined(made):
    text = json.dumps(made)
    for name in {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]}:
        assert name in made["$defs"], name
