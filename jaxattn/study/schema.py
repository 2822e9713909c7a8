"""The JSON schema of sweep files, for editors that complete and check TOML."""

import inspect
from typing import Any

import msgspec

from jaxattn.probes.settings import Probes
from jaxattn.study import concepts
from jaxattn.study.definition import Tables
from jaxattn.study.kinds import Concept, fields_of


def schema() -> dict[str, Any]:
    """Make the schema: built-in kinds with their settings; a kind with a colon is the user's own."""
    made = msgspec.json.schema(Tables) | {"title": "jaxattn sweep file"}
    definitions = made["$defs"]
    properties = definitions["Tables"]["properties"]
    parts = {"data": concepts.DATA, "model": concepts.MODEL, "loss": concepts.LOSS, "phases": concepts.PHASE}
    for name, concept in parts.items():
        choice = _choice(concept, definitions)
        if name == "phases":
            properties[name]["items"] = choice
        else:
            properties[name] = choice | {key: x for key, x in properties[name].items() if key == "default"}
    properties["probes"] = _table(Probes, {}, definitions)
    properties["probes"]["properties"]["own"] = {
        "type": "array",
        "items": _choice(concepts.PROBE, definitions),
    }
    return made


def _choice(concept: Concept, definitions: dict[str, Any]) -> dict[str, Any]:
    own = {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string", "pattern": ":"}}}
    names = {"type": "string", "anyOf": [{"enum": list(concept.known)}, {"pattern": ":"}]}
    built_in = [
        _table(target, {"kind": {"const": kind}}, definitions) for kind, target in concept.known.items()
    ]
    if concept is concepts.MODEL:
        for table in built_in:
            table["properties"]["init"] = {
                "type": "object",
                "additionalProperties": _choice(concepts.START, definitions),
            }
    return {"anyOf": [*built_in, own, names]}


def _table(target: Any, first: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    fields = fields_of(target)
    further = getattr(target, "takes_further", None)
    (*schemas,), components = msgspec.json.schema_components([field.type for field in fields])
    definitions.update(components)
    properties = first | {
        field.name: made
        | (
            {}
            if field.default is inspect.Parameter.empty
            else {"default": msgspec.to_builtins(field.default)}
        )
        for field, made in zip(fields, schemas, strict=True)
    }
    required = [*first, *(field.name for field in fields if field.default is inspect.Parameter.empty)]
    words = inspect.getdoc(target) or ""
    return {
        "type": "object",
        "description": words.partition("\n")[0],
        "properties": properties,
        "required": required,
        "additionalProperties": bool(further),
    }
