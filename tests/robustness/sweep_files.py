"""Mutated sweep files: each is planned, or rejected in one line with a place."""

import copy
import json
import os
import random
import re
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import tomli_w

import jaxattn as ja
from jaxattn import Study
from jaxattn.core.errors import UserCodeError
from jaxattn.lab.engine import memory
from jaxattn.lab.engine.missing import plan_run
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.storage.memo import Memo
from jaxattn.lab.study.groups import compile_groups

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(
    path
    for folder in ("sweeps", "jaxattn/lab/books/template", "tests/sweeps")
    for path in (ROOT / folder).glob("**/*.toml")
    if path.name not in ("book.toml", "item.toml")
)
LONGEST_S = 5.0
NUMBERS = [
    0,
    -1,
    1,
    2,
    7,
    2**31 - 1,
    2**31,
    2**63,
    10**30,
    0.0,
    -0.5,
    1e-300,
    1e308,
    1.5,
    float("inf"),
    float("nan"),
]
TEXTS = [
    "",
    " ",
    "[/nope]",
    "[red]",
    "a\nb",
    "é\u2028\u202e",
    "\x1b[31m",
    "x" * 5000,
    "../..",
    "/dev/zero",
    "1e5",
    "0:9",
    "mine.py:Nothing",
    "nosuch:Thing",
    "math:sqrt",
    "lab.py:",
    ":",
    "one_layer",
    "descent",
    "p",
]
PIECES = [
    "[",
    "]",
    "[[",
    "]]",
    "=",
    '"',
    "'",
    '"""',
    "\n",
    "#",
    ".",
    ",",
    "{",
    "}",
    "1e999",
    "-inf",
    "nan",
    "\0",
    "é",
    "\ufeff",
    "-",
    "true",
    "1979-05-27T07:32:00Z",
    "0x",
    "9" * 5000,
    "[" * 300,
    "a." * 300,
    "extends = '/dev/zero'\n",
]


class _WouldCompile(Exception):
    """Raised when planning reaches the point of compilation."""


def attack(count: int, seed: int) -> dict[str, int]:
    """Read and plan mutated sweep files, up to compilation.

    Args:
        count: number of files.
        seed: seed of the mutations; file k depends only on the seed and k.

    Returns:
        Number of files that were "accepted", and "refused" in one line.

    Raises:
        AssertionError: another outcome, or a file that took longer than LONGEST_S.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(memory, "peak", _stop):
        for number in range(count):
            outcomes[
                _attack_one(Path(folder), random.Random(f"{seed} {number}"), f"seed {seed}, file {number}")
            ] += 1
    return dict(outcomes)


def _attack_one(folder: Path, rng: random.Random, name: str) -> str:
    shipped = rng.choice(SHIPPED)
    text = _mutated_text(rng, shipped) if rng.random() < 0.4 else _mutated_values(rng, shipped)
    path = folder / "mutated.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    where = f"{name}, of {shipped.relative_to(ROOT)}:\n{text[:3000]}"
    begin = time.process_time()
    try:
        outcome = _plan(path, folder / "none")
    except (ja.InputError, UserCodeError) as error:
        outcome, line = "refused", str(error)
        assert "\n" not in line, f"{line!r} is more than one line; {where}"
        assert re.match(r"\S[^:]*: \S", line), f"{line!r} names no place; {where}"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}; {where}") from error
    taken = time.process_time() - begin
    assert taken < LONGEST_S, f"{taken:.1f} s; {where}"
    return outcome


def _plan(path: Path, folder: Path) -> str:
    study = Study.read(path)
    groups = compile_groups(study.cells)
    try:
        # Texts are not read, because their existence does not depend on the sweep file.
        if not any(group.setting.data.shared for group in groups):
            with Reporter(quiet=True) as reporter:
                plan_run(study, Memo(folder), ProgramCache(), reporter, command="attack")
    except _WouldCompile:
        pass
    return "accepted"


def _stop(*arguments: Any) -> None:
    raise _WouldCompile


def _mutated_text(rng: random.Random, shipped: Path) -> str:
    """Cut pieces out, duplicate them, or insert pieces of TOML."""
    text = _located(shipped.read_text(encoding="utf-8"), shipped)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.randrange(30))
        middle = rng.choice(["", text[start:end] * 2, rng.choice(PIECES), rng.choice(TEXTS)])
        text = text[:start] + middle + text[end:]
    return text


def _mutated_values(rng: random.Random, shipped: Path) -> str:
    """Change values, keys and tables of the parsed file."""
    tree = tomllib.loads(_located(shipped.read_text(encoding="utf-8"), shipped))
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        places = list(_places(tree))
        holder, key = rng.choice(places)
        rng.choice(MUTATIONS)(rng, tree, holder, key)
    try:
        return tomli_w.dumps(tree)
    except (RecursionError, ValueError, TypeError):
        return json.dumps(tree, default=str)


def _located(text: str, shipped: Path) -> str:
    """Make files next to the shipped file available from another folder."""
    base = os.fspath(shipped.parent)
    text = re.sub(r'(?m)^extends = "(?!/)', f'extends = "{base}/', text)
    return re.sub(r'"(\w+\.py:)', rf'"{base}/\1', text)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _set(value: Callable[[random.Random, Any], Any]) -> Callable[..., None]:
    def mutate(rng: random.Random, tree: Any, holder: Any, key: Any) -> None:
        holder[key] = value(rng, holder[key])

    return mutate


def _delete(rng: random.Random, tree: Any, holder: Any, key: Any) -> None:
    del holder[key]


def _rename(rng: random.Random, tree: Any, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        name = rng.choice(
            [f"{key}s", key[:-1], key.upper(), rng.choice(TEXTS), f"{key}.{key}", "kind", "name"]
        )
        holder[name] = holder.pop(key)


def _duplicate(rng: random.Random, tree: Any, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[f"{key}_2"] = copy.deepcopy(holder[key])


def _swap(rng: random.Random, tree: Any, holder: Any, key: Any) -> None:
    other, place = rng.choice(list(_places(tree)))
    one, two = copy.deepcopy(holder[key]), copy.deepcopy(other[place])
    holder[key] = two
    other[place] = one


def _sweep(rng: random.Random, tree: Any, holder: Any, key: Any) -> None:
    """Add a grid to the file, or replace it."""
    keys = [
        "model.dim",
        "phases.query.step_size",
        "phases.0.steps",
        "data.vocab_size",
        "seeds",
        "loss.smoothing",
        "dtype",
        "model.kind",
        "phases.embed.kind",
        "probes.own.0",
        "name",
        "axes",
        "data",
        "x.y.z",
        rng.choice(TEXTS),
    ]
    values = [
        rng.sample(NUMBERS, 3),
        rng.sample(TEXTS, 2),
        [],
        [[1]],
        [{}],
        3,
        list(range(rng.choice([3, 1000]))),
    ]
    name = rng.choice(["axes", "zip", "cells", "exclude", "halton", "blocks"])
    chosen = {k: rng.choice(values) for k in rng.sample(keys, rng.randint(1, 4))}
    tree[name] = {
        "cells": [chosen],
        "exclude": [chosen],
        "halton": {
            "points": rng.choice(NUMBERS),
            "axes": {k: {"low": rng.choice(NUMBERS), "high": rng.choice(NUMBERS)} for k in chosen},
        },
        "blocks": {rng.choice(TEXTS): chosen, "two": copy.deepcopy(tree)},
    }.get(name, chosen)


def _deep(rng: random.Random, old: Any) -> Any:
    value: Any = old
    for _ in range(rng.choice([3, 60, 120])):
        value = rng.choice([[value], {"x": value}, {"kind": value}])
    return value


MUTATIONS = [
    _set(lambda rng, old: rng.choice(NUMBERS)),
    _set(lambda rng, old: rng.choice(TEXTS)),
    _set(
        lambda rng, old: rng.choice([True, [], {}, [old], {"kind": old}, [old] * 3, {"name": old}, str(old)])
    ),
    _set(lambda rng, old: old * rng.choice([-1, 1000, 10**9]) if isinstance(old, int | float) else old),
    _set(_deep),
    _delete,
    _rename,
    _duplicate,
    _swap,
    _sweep,
]
