"""The size and the shape of the package, counted from its sources alone.

    python benchmarks/size.py [--rooms] [--imports] [--single]

prints lines of code (without docstrings, blank lines and comments), modules (without `__init__`), and
the import graph between rooms: its levels and a circle if there is one. A room is a directory of the
package or of its lab, or a module there. tests/test_imports.py checks which room may import which.

An import inside a function, or for types alone, counts like one at the head of a module. There is one
exception: names that an `__init__` imports on first use, which it lists for type checkers alone. A name
imported from a package counts as an import of the package's `__init__`, a module imported from it as one of
the module.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "jaxattn"

LAB = "jaxattn.lab"

Graph = dict[str, set[str]]

_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Lines that hold code: not blank, not a comment, not a string that stands alone (a docstring)."""
    documented = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """The file of each module of the package, by the module's full name."""
    named = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports(package: Path = PACKAGE) -> Graph:
    """The modules of the package that each of its modules imports."""
    files = modules(package)
    return {
        name: _imported(path.read_text(), files.keys(), lazy=not _is_module(path)) - {name}
        for name, path in files.items()
    }


def room(module: str) -> str:
    """The room of a module: the directory or module below the package, or below its lab, that holds it."""
    return ".".join(module.split(".")[: 3 if f"{module}.".startswith(f"{LAB}.") else 2])


def between_rooms(graph: Graph) -> Graph:
    """The rooms that each room imports."""
    rooms: Graph = {room(name): set() for name in graph}
    for name, imported in graph.items():
        rooms[room(name)].update(room(other) for other in imported)
    return {name: imported - {name} for name, imported in rooms.items()}


def circle(graph: Graph) -> list[str]:
    """One circle of imports as the names along it, or nothing where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def levels(graph: Graph) -> dict[str, int]:
    """The level of each module: 1 if it imports no other, else one above the highest that it imports."""
    level: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        level[name] = 1 + max((level[other] for other in graph[name]), default=0)
    return level


def longest_chain(graph: Graph) -> list[str]:
    """Modules from the highest level down, each importing the next."""
    level = levels(graph)
    chain = [max(level, key=lambda name: (level[name], name))]
    while graph[chain[-1]]:
        chain.append(max(graph[chain[-1]], key=lambda name: (level[name], name)))
    return chain


def _imported(source: str, known, *, lazy: bool) -> set[str]:
    found: set[str] = set()
    tree = ast.parse(source)
    if lazy:
        tree.body = [node for node in tree.body if not _for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
    return found


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rooms", action="store_true", help="lines of code and modules of each room, by level"
    )
    parser.add_argument(
        "--imports", action="store_true", help="a longest chain of modules, each importing the next"
    )
    parser.add_argument("--single", action="store_true", help="modules that exactly one other imports")
    options = parser.parse_args()
    files, graph = modules(), imports()
    rooms = between_rooms(graph)
    code = {name: code_lines(path.read_text()) for name, path in files.items()}
    around = circle(graph) or circle(rooms)
    library = sum(lines for name, lines in code.items() if not f"{name}.".startswith(f"{LAB}."))
    print(f"lines of code   {sum(code.values()):6,}")
    print(f"of the library  {library:6,}")
    print(f"modules         {sum(_is_module(path) for path in files.values()):6}")
    print(f"levels of rooms {'none' if around else max(levels(rooms).values()):>6}")
    print(f"circle          {' -> '.join(around) or 'none':>6}")
    if options.rooms and not around:
        _print_rooms(files, code, rooms)
    if options.imports and not around:
        print("\n" + " -> ".join(longest_chain(graph)))
    if options.single:
        _print_single(graph, code)


def _is_module(path: Path) -> bool:
    return path.name != "__init__.py"


def _print_rooms(files: dict[str, Path], code: dict[str, int], rooms: Graph) -> None:
    lines: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for name, path in files.items():
        lines[room(name)] += code[name]
        count[room(name)] += _is_module(path)
    level = levels(rooms)
    print()
    for name in sorted(level, key=lambda name: (-level[name], name)):
        print(f"{level[name]:3}  {name:24} {lines[name]:6,} lines {count[name]:4} modules")


def _print_single(graph: Graph, code: dict[str, int]) -> None:
    importers: dict[str, list[str]] = {name: [] for name in graph}
    for name, imported in graph.items():
        for other in imported:
            importers[other].append(name)
    print()
    for name, by in importers.items():
        if len(by) == 1:
            print(f"{name:36} {code[name]:4} lines, by {by[0]}")


if __name__ == "__main__":
    main()
