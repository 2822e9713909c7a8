"""Count the memory traffic, operations and launches of a compiled program from its text."""

import re
from collections.abc import Iterator, Mapping, Sequence
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
# TPU memory spaces other than main memory.
_ON_CHIP = re.compile(r"S\([1-9]\d*\)")


class Type(NamedTuple):
    """Array type: element type, shape, and whether the array is in the main memory of the device."""

    element: str
    shape: tuple[int, ...]
    in_memory: bool

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes, without the padding of tiles."""
        return self.elements * _BITS.get(self.element, 0) // 8


class Instruction(NamedTuple):
    """One instruction of a compiled program.

    Attributes:
        name: name of the instruction.
        is_root: True if this instruction is the root (the return value) of its computation.
        types: types of the result arrays.
        op: name of the operation.
        operands: names of the operands.
        rest: text after the operands.
        argument: text in parentheses. It is the index of a parameter, or the value of a constant.
    """

    name: str
    is_root: bool
    types: tuple[Type, ...]
    op: str
    operands: tuple[str, ...]
    rest: str
    argument: str

    def called(self, kind: str) -> str:
        """Return the name of the computation in attribute `kind` ("calls", "body", ...), or ""."""
        return next((found[2] for found in _CALLED.finditer(self.rest) if found[1] == kind), "")

    @property
    def branches(self) -> list[str]:
        """Names of the branch computations of a conditional."""
        if found := _BRANCHES.search(self.rest):
            return re.findall(r"%([\w.\-]+)", found[1])
        return [self.called("true_computation"), self.called("false_computation")]

    @property
    def trips(self) -> int | None:
        """Number of iterations of a loop, or None if it is not statically known."""
        found = _TRIPS.search(self.rest)
        return int(found[1]) if found else None


class Module(NamedTuple):
    """Compiled program: computations keyed by name, and the name of the entry computation."""

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str


def parse(text: str) -> Module:
    """Parse the text of a program from `compiled.as_text()`."""
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
    """Return the array types in the text of a result type. A tuple type contains one for each element."""
    return tuple(
        Type(
            found[1],
            tuple(map(int, found[2].split(","))) if found[2] else (),
            not _ON_CHIP.search(found[3] or ""),
        )
        for found in _ARRAY.finditer(text)
    )


def _bracketed(text: str) -> tuple[str, str]:
    """Split a text at its first unmatched closing parenthesis."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:place], text[place + 1 :]
    return text, ""


# Operations that move no data and launch no kernel.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "opt-barrier",
    "optimization-barrier",
    "partition-id",
    "replica-id",
}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "reduce-scatter",
    "send",
    "recv",
)
_SLICES = ("dynamic-slice", "slice", "gather")
# Operations that perform no arithmetic.
_STILL = _FREE | {
    *("broadcast", "iota", "reshape", "transpose", "copy", "concatenate", "pad", "reverse", "fusion", "call"),
    *("while", "conditional", "sort", "custom-call", "gather", "slice", "dynamic-slice", "convert"),
    *("dynamic-update-slice", "scatter", "copy-start", "copy-done", "async-start", "async-done"),
    *("slice-start", "slice-done"),
}


class Work(NamedTuple):
    """Memory traffic, operations and launches in a part of a program.

    Attributes:
        bytes: memory traffic of the device. Every operation reads its operands and writes its results. If an
            operand is only sliced or gathered from, only the elements that are read count.
        flops: number of arithmetic operations, two for each term of a matrix product.
        launches: number of operations started; on a GPU, number of kernels.
    """

    bytes: int = 0
    flops: int = 0
    launches: int = 0

    def __add__(self, other: "Work") -> "Work":  # type: ignore[override]
        """Return the sum of each field."""
        return Work(*(x + y for x, y in zip(self, other, strict=True)))

    def times(self, often: int) -> "Work":
        """Return the work of `often` repetitions."""
        return Work(*(often * x for x in self))


class Counted(NamedTuple):
    """Counts for a compiled program.

    Attributes:
        step: work of one iteration of the loops whose length is not statically known, such as the steps of
            a phase. A nested loop of unknown length counts as one iteration. A conditional counts as the
            branch with the least memory traffic.
        once: work of all other instructions.
        scatter_adds: number of scatters that add floating-point numbers.
        collectives: number of collective operations.
        float64: number of instructions with float64 results.
        conditionals: number of conditionals.
        unknown_loops: number of loops of unknown length.
    """

    step: Work
    once: Work
    scatter_adds: int
    collectives: int
    float64: int
    conditionals: int
    unknown_loops: int


def count(text: str) -> Counted:
    """Count the work of a compiled program.

    Args:
        text: the output of `compiled.as_text()`.

    Returns:
        The counts. Caches are ignored, so memory that is read twice counts twice.
    """
    module = parse(text)
    every = [line for lines in module.computations.values() for line in lines]
    reached = _Walk(module)
    once = reached.work(module.entry)
    return Counted(
        step=reached.step,
        once=once,
        scatter_adds=sum(_adds_up(module, line) for line in every),
        collectives=sum(line.op.removesuffix("-start") in _COLLECTIVES for line in every),
        float64=sum(
            line.op != "parameter" and any(made.element == "f64" for made in line.types) for line in every
        ),
        conditionals=sum(line.op == "conditional" for line in every),
        unknown_loops=sum(line.op == "while" and line.trips is None for line in every),
    )


class _Walk:
    """Traversal that sums the work of a program.

    The work of loops of unknown length is summed separately, in `step`.
    """

    def __init__(self, module: Module) -> None:
        self.module, self.step = module, Work()
        self._inside = False

    def work(self, name: str) -> Work:
        lines = self.module.computations[name]
        types = {line.name: line.types for line in lines}
        total = Work()
        for line in lines:
            if line.op == "while":
                total += self._loop(line)
            elif line.op == "conditional":
                total += min(map(self.work, line.branches), key=lambda found: found.bytes)
            elif line.op == "call":
                total += self.work(line.called("to_apply"))
            elif line.op not in _FREE and not line.op.endswith("-done"):
                flops = _flops(self.module, line, types)
                total += Work(_bytes(self.module, line, types), flops, 1)
        return total

    def _loop(self, line: Instruction) -> Work:
        outer, self._inside = self._inside, self._inside or line.trips is None
        one = self.work(line.called("body")) + self.work(line.called("condition"))
        self._inside = outer
        if line.trips is None and not outer:
            self.step += one
            return Work()
        return one.times(1 if line.trips is None else line.trips)


def _bytes(module: Module, line: Instruction, types: dict[str, tuple[Type, ...]]) -> int:
    """Count the bytes that one operation reads and writes."""
    given = [types.get(name, ()) for name in line.operands]
    if line.op == "dynamic-update-slice":
        return 2 * _size(given[1])
    if line.op == "copy-start":
        return _size(line.types[:2])
    if line.op == "slice-start":
        # Only a slice of the source is read. `types` contains the types of the source, the slice and a flag.
        return line.types[1].bytes + _size(line.types[1:2])
    if line.op in _SLICES:
        return _size(line.types) + min(_size(given[0]), _size(line.types)) + sum(map(_size, given[1:]))
    inner = module.computations.get(line.called("calls"), ()) if line.op == "fusion" else ()
    if not inner:
        return _size(line.types) + sum(map(_size, given))
    parameters = {int(x.argument): x.name for x in inner if x.op == "parameter"}
    read = sum(_read(inner, parameters[k], x) for k, x in enumerate(given) if k in parameters)
    return read + _written(inner, line)


def _read(inner: Sequence[Instruction], parameter: str, given: Sequence[Type]) -> int:
    """Count the bytes that a fusion reads from a parameter.

    If the fusion only slices the parameter, only the slices count.
    """
    whole = _size(given)
    users = list(_users(inner, parameter))
    taken = 0
    for name, line in users:
        first = bool(line.operands) and line.operands[0] == name
        if line.op in _SLICES and first and name not in line.operands[1:]:
            taken += sum(made.bytes for made in line.types)
        elif not (line.op == "dynamic-update-slice" and first):
            return whole
    return min(whole, taken)


def _users(inner: Sequence[Instruction], name: str) -> Iterator[tuple[str, Instruction]]:
    """Yield (operand name, instruction) for each direct use of a value and each use through bitcasts."""
    for line in inner:
        if name in line.operands:
            if line.op == "bitcast":
                yield from _users(inner, line.name)
            else:
                yield name, line


def _written(inner: Sequence[Instruction], line: Instruction) -> int:
    """Count the bytes that a fusion writes. If it updates an array in place, only the update counts."""
    by_name = {own.name: own for own in inner}
    (root,) = (own for own in inner if own.is_root)
    while root.op == "bitcast":
        root = by_name[root.operands[0]]
    if root.op == "dynamic-update-slice" and line.types[0].in_memory:
        return sum(made.bytes for made in by_name[root.operands[1]].types)
    return _size(line.types)


def _size(made: Sequence[Type]) -> int:
    return sum(own.bytes for own in made if own.in_memory)


def _flops(module: Module, line: Instruction, types: dict[str, tuple[Type, ...]]) -> int:
    """Count the arithmetic operations of an instruction, including those of the computation in a fusion."""
    elements = sum(made.elements for made in line.types)
    inner = module.computations.get(line.called("calls"), ()) if line.op == "fusion" else ()
    if inner:
        own = {x.name: x.types for x in inner}
        return sum(_flops(module, x, own) for x in inner)
    if line.op in ("dot", "convolution") or "gemm" in line.rest.partition("metadata")[0]:
        return 2 * line.types[0].elements * _terms(line, types)
    if line.op in ("reduce", "reduce-window"):
        return sum(made.elements for made in types.get(line.operands[0], ()))
    return 0 if line.op in _STILL else elements


def _terms(line: Instruction, types: dict[str, tuple[Type, ...]]) -> int:
    """Return the number of terms in each element of a matrix product or a convolution."""
    left, right = (types[name][0].shape for name in line.operands[:2])
    if labels := re.search(r"dim_labels=\w+_(\w+)->", line.rest):
        return prod(right) // max(1, right[labels[1].index("o")])
    found = re.search(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]"?([\d",]*)', line.rest)
    return prod(left[int(k)] for k in re.findall(r"\d+", found[1])) if found else 1


def _adds_up(module: Module, line: Instruction) -> bool:
    """Return True if an instruction is a scatter that adds floating-point numbers."""
    combined = module.computations.get(line.called("to_apply"), ())
    is_float = any(made.element in ("f32", "f64", "bf16", "f16") for made in line.types)
    return line.op == "scatter" and is_float and any(own.op == "add" for own in combined)
