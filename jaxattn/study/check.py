"""Checking a sweep: trees of plain values to types, with errors that name the key and a near right one."""

import difflib
import re
import types
import typing
from typing import Any

import msgspec

from jaxattn.errors import InputError
from jaxattn.study.config import Descent, ExactFlow, LogDescent, OneLayer, Phase, Sweep, Synthetic
from jaxattn.study.models import model


def check(tree: dict[str, Any]) -> Sweep:
    """Turn a tree of plain values into a checked `Sweep`; InputError names the key and a near right one."""
    try:
        sweep = msgspec.convert(tree, Sweep)
    except msgspec.ValidationError as error:
        raise InputError(_explain(str(error), tree)) from None
    if isinstance(sweep.seeds, str) and int.__sub__(*map(int, sweep.seeds.split(":")[::-1])) > 1_000_000:
        raise InputError(f"seeds: {sweep.seeds} are more than a million; list fewer")
    seeds = sweep.seed_numbers
    if len(set(seeds)) < len(seeds) or not seeds:
        raise InputError(f"seeds: {'a seed is listed twice' if seeds else 'no seed'}; list each once")
    names = [phase.name for phase in sweep.phases]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"phases: two phases are named {name!r}; give each its own name")
    known = model(sweep.model).parameters
    for index, phase in enumerate(sweep.phases):
        _check_phase(phase, f"phases[{index}]", known, sweep)
    if sweep.probes.max_margin and not isinstance(sweep.model, OneLayer):
        raise InputError("probes.max_margin: only model.kind = 'one_layer' has a max-margin direction")
    if sweep.probes.max_margin and all(tuple(phase.train) != ("p",) for phase in sweep.phases):
        raise InputError("probes.max_margin: no phase moves p alone; add one, or leave it out")
    if sweep.probes.low >= sweep.probes.high:
        raise InputError(f"probes.low: {sweep.probes.low} is not below probes.high = {sweep.probes.high}")
    return sweep


def _check_phase(phase: Phase, place: str, known: tuple[str, ...], sweep: Sweep) -> None:
    for parameter in phase.train:
        if parameter not in known:
            raise InputError(f"{place}.train: {parameter!r} is not one of {', '.join(known)}")
    if isinstance(phase, ExactFlow | LogDescent) and not isinstance(sweep.model, OneLayer):
        raise InputError(f"{place}: it follows p of model.kind = 'one_layer' only; use kind = 'descent'")
    if isinstance(phase, Descent) and phase.patience:
        held_out = getattr(sweep.data, "validation_sequences", 0) or getattr(sweep.data, "validation", 0)
        if not held_out:
            key = "validation_sequences" if isinstance(sweep.data, Synthetic) else "validation"
            raise InputError(f"{place}.patience: there is no validation corpus; give data.{key}")


def plain(config: Sweep) -> dict[str, Any]:
    """Write a config as JSON would hold it: tables and lists of plain values."""
    return msgspec.json.decode(msgspec.json.encode(config))


class placed:
    """Prefix the message of any InputError with the place it was found at."""

    def __init__(self, place: str):
        self.place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InputError) and self.place:
            raise InputError(f"{self.place}: {error}") from None


def _explain(message: str, tree: Any) -> str:
    """Put msgspec's message key first and add the nearest right key or value."""
    text, _, place = message.partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    text = text.replace("Object contains unknown field", "unknown key").replace("`", "'")
    text = text.replace("Object missing required field", "missing key")
    text = text[:1].lower() + text[1:]
    unknown = re.fullmatch(r"unknown key '(.*)'", text)
    kind = re.fullmatch(r"invalid (?:value|enum value) '(.*)'", text)
    if unknown:
        text += _suggest(unknown[1], _known_keys(place, tree))
    elif kind:
        text += _suggest(kind[1], _known_values(place))
    return f"{place}: {text}" if place else text


def _suggest(given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given, known, 1, cutoff=0.4)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}" if known else ""


def _known_keys(place: str, tree: Any) -> list[str]:
    tables = _tables(place.split("[")[0])
    if len(tables) == 1:
        return [field.name for field in msgspec.structs.fields(tables[0])]
    value: Any = tree
    for part in re.findall(r"\w+", place):
        value = value[int(part)] if isinstance(value, list) else value[part]
    chosen = next(table for table in tables if table.__struct_config__.tag == value["kind"])
    return ["kind", *(field.name for field in msgspec.structs.fields(chosen))]


def _known_values(place: str) -> list[str]:
    section, _, key = place.rpartition(".")
    tables = _tables(section.split("[")[0])
    if key == "kind":
        return [str(table.__struct_config__.tag) for table in tables]
    fields = [field for table in tables for field in msgspec.structs.fields(table) if field.name == key]
    return [str(value) for field in fields for value in typing.get_args(field.type)]


def _tables(section: str) -> list[type[msgspec.Struct]]:
    """List the types that a section of a sweep file may have; the file itself for no section."""
    declared: Any = {"": Sweep, **{field.name: field.type for field in msgspec.structs.fields(Sweep)}}[
        section
    ]
    declared = getattr(declared, "__origin__", declared) if hasattr(declared, "__metadata__") else declared
    if typing.get_origin(declared) is tuple:
        declared = typing.get_args(declared)[0]
    options = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    return [option for option in options if isinstance(option, type) and issubclass(option, msgspec.Struct)]
