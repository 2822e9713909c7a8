"""Compiled programs as XLA writes them: computations, their instructions, and sizes of types."""

import re
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

_BITS = {
    **dict.fromkeys(("f64", "s64", "u64", "c64"), 64),
    **dict.fromkeys(("f32", "s32", "u32"), 32),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 16),
    **dict.fromkeys(("s8", "u8", "pred"), 8),
    **dict.fromkeys(("s4", "u4"), 4),
    "c128": 128,
}
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](\{[^{}]*\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*)$")
_CALLED = re.compile(r"\b(calls|to_apply|condition|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"(\d+)"')
# A memory space of a TPU beside its large memory.
_ON_CHIP = re.compile(r"S\([1-9]\d*\)")


class Type(NamedTuple):
    """An array type: its element type, shape, and whether it lies in the large memory of the device."""

    element: str
    shape: tuple[int, ...]
    in_memory: bool

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its size, without the padding of tiles."""
        return self.elements * _BITS.get(self.element, 0) // 8


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        name: its name.
        is_root: whether its computation returns it.
        types: the arrays that it makes.
        op: the operation.
        operands: names of what it takes.
        rest: what is written after its operands.
        argument: the text between its brackets, for parameters and constants.
    """

    name: str
    is_root: bool
    types: tuple[Type, ...]
    op: str
    operands: tuple[str, ...]
    rest: str
    argument: str

    def called(self, kind: str) -> str:
        """Name the computation that it calls as "calls", "body", ...; "" if there is none."""
        return next((found[2] for found in _CALLED.finditer(self.rest) if found[1] == kind), "")

    @property
    def branches(self) -> list[str]:
        """Names of the branches of a conditional."""
        if found := _BRANCHES.search(self.rest):
            return re.findall(r"%([\w.\-]+)", found[1])
        return [self.called("true_computation"), self.called("false_computation")]

    @property
    def trips(self) -> int | None:
        """How often a loop runs, None if that is not known before."""
        found = _TRIPS.search(self.rest)
        return int(found[1]) if found else None


class Module(NamedTuple):
    """A compiled program: its computations by name, and the one that it begins with."""

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str


def parse(text: str) -> Module:
    """Read a program as `compiled.as_text()` writes it."""
    found: dict[str, list[Instruction]] = {}
    entry, own = "", None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            own = found.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            own = None
        elif own is not None and (match := _INSTRUCTION.match(line)):
            argument, rest = _bracketed(match[5])
            operands = tuple(re.findall(r"%([\w.\-]+)", argument))
            own.append(
                Instruction(match[2], bool(match[1]), types(match[3]), match[4], operands, rest, argument)
            )
    return Module({name: tuple(lines) for name, lines in found.items()}, entry)


def types(text: str) -> tuple[Type, ...]:
    """Read the arrays of a type, which may be a tuple."""
    return tuple(
        Type(
            found[1],
            tuple(map(int, found[2].split(","))) if found[2] else (),
            not _ON_CHIP.search(found[3] or ""),
        )
        for found in _ARRAY.finditer(text)
    )


def _bracketed(text: str) -> tuple[str, str]:
    """Cut a text where the bracket that is open closes."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:place], text[place + 1 :]
    return text, ""
