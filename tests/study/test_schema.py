"""The JSON schema of sweep files, against the files and against what reading says."""

import json
import tomllib
from pathlib import Path

import pytest

from jaxattn.dynamics import PHASES
from jaxattn.models import MODELS
from jaxattn.study.schema import schema

SHIPPED = sorted((Path(__file__).parents[2] / "sweeps").glob("**/*.toml"))


@pytest.fixture(scope="module")
def made():
    return json.loads(json.dumps(schema()))


def test_the_schema_describes_the_shipped_files(made):
    fields = made["$defs"]["Tables"]["properties"]
    assert {"name", "data", "phases", "axes", "halton", "blocks"} <= set(fields)
    for path in SHIPPED:
        assert set(tomllib.loads(path.read_text())) <= {*fields, "extends"}


def choices(made, part):
    properties = made["$defs"]["Tables"]["properties"][part]
    return {
        table["properties"]["kind"]["const"]: table
        for table in (properties.get("items") or properties)["anyOf"]
        if "const" in table.get("properties", {}).get("kind", {})
    }


def test_every_kind_has_its_settings_with_defaults(made):
    models, phases = choices(made, "model"), choices(made, "phases")
    assert set(models) == set(MODELS)
    assert set(phases) == set(PHASES)
    flow = phases["exact_flow"]
    assert flow["properties"]["points"] == {"type": "integer", "minimum": 3, "default": 64}
    assert flow["required"] == ["kind", "name"]
    assert not flow["additionalProperties"]
    # Options of an optimiser are whatever optax takes.
    assert phases["descent"]["additionalProperties"]
    assert models["one_layer"]["properties"]["dim"] == {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
    assert "scaled" in json.dumps(models["one_layer"]["properties"]["init"])


def test_own_code_is_allowed_everywhere(made):
    for part in ("data", "model", "loss", "phases"):
        properties = made["$defs"]["Tables"]["properties"][part]
        every = (properties.get("items") or properties)["anyOf"]
        assert {"type": "string", "pattern": ":"} in [x.get("properties", {}).get("kind") for x in every]


def test_every_reference_has_its_definition(made):
    text = json.dumps(made)
    for name in {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]}:
        assert name in made["$defs"], name
