"""JSON schema of sweep files, which editors use to check and complete keys."""

from collections.abc import Sequence
from typing import Any

import msgspec

from jaxattn.core.settings import meanings, summary_line
from jaxattn.core.spec import Spec
from jaxattn.lab.probes.standard import Probes
from jaxattn.lab.study import concepts
from jaxattn.lab.study.concepts import Concept
from jaxattn.lab.study.definition import Tables
from jaxattn.lab.study.grid import GRID, PRESENTATION
from jaxattn.lab.study.registry import fields_of

Schema = dict[str, Any]
_PARTS: dict[str, Concept[Any]] = {"data": concepts.DATA, "model": concepts.MODEL, "loss": concepts.LOSS}
# An axis: a non-empty array of numbers, strings or booleans. Dotted keys can also be written as nested
# tables.
AXIS = {"type": "array", "minItems": 1, "items": {"type": ["number", "string", "boolean"]}}
VALUE = {"type": ["number", "string", "boolean", "array"]}


def sweep_schema() -> Schema:
    """Build the JSON schema of sweep files, with the settings of all built-in kinds.

    A kind that contains a colon is custom code. A block, or a file that extends another file, may contain
    any subset of the tables.
    """
    made = msgspec.json.schema(Tables)
    definitions = made["$defs"]
    definitions |= {
        "axes": _nested_schema("axes", AXIS),
        "row": _nested_schema("row", VALUE),
        "ranges": _nested_schema("ranges", {"$ref": "#/$defs/Range"}),
    }
    definitions["Halton"]["properties"]["axes"] = {"$ref": "#/$defs/ranges", "minProperties": 1}
    whole = definitions["Tables"]
    whole["properties"] |= {key: {"$ref": "#/$defs/axes"} for key in ("axes", "zip")}
    whole["properties"] |= {key: _list_schema({"$ref": "#/$defs/row"}) for key in ("cells", "exclude")}
    changes = whole | {"properties": dict(whole["properties"]), "required": ["extends"]}
    for table, part in ((whole, _choice), (changes, _change)):
        properties = table["properties"]
        for name, concept in _PARTS.items():
            default = {key: x for key, x in properties[name].items() if key == "default"}
            properties[name] = part(concept, definitions) | default
        properties["phases"] = _list_schema(_choice(concepts.PHASE, definitions)) | {"minItems": 1}
        properties["probes"] = _table(Probes, {}, definitions)
        own = _list_schema(_choice(concepts.PROBE, definitions))
        properties["probes"]["properties"] |= {"own": own}
    listed: Sequence[tuple[Schema, str, Concept[Any]]] = (
        (changes["properties"], "phases", concepts.PHASE),
        (changes["properties"]["probes"]["properties"], "own", concepts.PROBE),
    )
    for properties, key, concept in listed:
        by_name = {"type": "object", "additionalProperties": _change(concept, definitions)}
        properties[key] = {"anyOf": [properties[key], by_name]}
    inside = {key: x for key, x in changes["properties"].items() if key not in PRESENTATION or key in GRID}
    block = {"type": "object", "properties": inside, "additionalProperties": False}
    for table in (whole, changes):
        table["properties"]["blocks"] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Block"}}
    changes["properties"]["extends"] = {"type": "string"}
    definitions |= {"Changes": changes | {"title": "Changes"}, "Block": block}
    return {
        "title": "jaxattn sweep file",
        "anyOf": [{"$ref": "#/$defs/Tables"}, {"$ref": "#/$defs/Changes"}],
        "$defs": definitions,
    }


def _nested_schema(name: str, leaf: Schema) -> Schema:
    return {"type": "object", "additionalProperties": {"anyOf": [leaf, {"$ref": f"#/$defs/{name}"}]}}


def _list_schema(items: Schema) -> Schema:
    return {"type": "array", "items": items}


# A custom component, whose settings are defined only by its code.
_OWN = {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string", "pattern": ":"}}}


def _choice(concept: Concept[Any], definitions: Schema) -> Schema:
    return {"anyOf": [*_built_in(concept, definitions), _OWN, _name(concept)]}


def _change(concept: Concept[Any], definitions: Schema) -> Schema:
    settings: dict[str, list[Schema]] = {}
    for table in _built_in(concept, definitions):
        for key, x in table["properties"].items():
            if x not in settings.setdefault(key, []):
                settings[key].append(x)
    properties: Schema = {key: {"anyOf": every} for key, every in settings.items()}
    properties["kind"] = _name(concept)
    if concept is concepts.MODEL:
        start = _change(concepts.START, definitions)
        properties["init"] = {"type": "object", "additionalProperties": start}
    return {"anyOf": [{"type": "object", "properties": properties}, _OWN, _name(concept)]}


def _name(concept: Concept[Any]) -> Schema:
    return {"type": "string", "anyOf": [{"enum": list(concept.known)}, {"pattern": ":"}]}


def _built_in(concept: Concept[Any], definitions: Schema) -> list[Schema]:
    tables = [
        _table(target, {"kind": {"const": kind}}, definitions) for kind, target in concept.known.items()
    ]
    for kind, table in zip(concept.known, tables, strict=True):
        settings = [key for key in table["required"] if key != "kind"]
        if concept.default(dict.fromkeys(settings)) == kind:
            table["required"] = settings
    for table in tables if concept is concepts.MODEL else ():
        start = _choice(concepts.START, definitions)
        table["properties"]["init"] = {"type": "object", "additionalProperties": start}
    return tables


def _table(target: type[Spec], first: Schema, definitions: Schema) -> Schema:
    fields = fields_of(target)
    (*schemas,), components = msgspec.json.schema_components([field.type for field in fields])
    definitions.update(components)
    meaning = meanings(target)
    properties = first | {
        field.name: made
        | ({"description": meaning[field.name]} if field.name in meaning else {})
        | ({} if field.default is msgspec.NODEFAULT else {"default": msgspec.to_builtins(field.default)})
        for field, made in zip(fields, schemas, strict=True)
    }
    required = [*first, *(field.name for field in fields if field.default is msgspec.NODEFAULT)]
    return {
        "type": "object",
        "description": summary_line(target),
        "properties": properties,
        "required": required,
        "additionalProperties": bool(target.options_field),
    }
