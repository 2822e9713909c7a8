"""Measure the size and structure of the package from its sources.

    python benchmarks/size.py [--rooms] [--imports] [--single] [--names]

The script prints the number of lines of code (without docstrings, blank lines and comments) and the number of
modules (without `__init__`). It also prints the number of levels of the import graph between rooms, and an
import cycle if there is one. A room is a directory or module of the package or of its lab.
tests/test_imports.py checks which room may import which. A name with multiple meanings is a public function,
class or constant that is defined in more than one module.

An import inside a function, or for type checkers only, counts like an import at the top of a module. The
exceptions are names that an `__init__` imports on first use: it also imports them for type checkers, and
those imports do not count. A name imported from a package counts as an import of the `__init__` of the
package. A module imported from a package counts as an import of the module.
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
    """Count the lines of code, that is, all lines except blank lines, comments and docstrings."""
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
    """Return the files of all modules in the package, keyed by full module name."""
    named = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports(package: Path = PACKAGE) -> Graph:
    """For each module of the package, return the modules of the package that it imports."""
    files = modules(package)
    return {
        name: _imported(path.read_text(), files.keys(), lazy=not _is_module(path)) - {name}
        for name, path in files.items()
    }


def meanings(package: Path = PACKAGE) -> dict[str, list[str]]:
    """Return the public names that are defined in more than one module, with the defining modules."""
    defined: dict[str, list[str]] = {}
    for module, path in modules(package).items():
        for name in _defined(ast.parse(path.read_text())):
            defined.setdefault(name, []).append(module)
    return {name: where for name, where in sorted(defined.items()) if len(where) > 1}


def _defined(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name))
    return {name for name in names if not name.startswith("_")}


def room(module: str) -> str:
    """Return the room of a module, which is a directory or module of the package or of its lab."""
    return ".".join(module.split(".")[: 3 if f"{module}.".startswith(f"{LAB}.") else 2])


def between_rooms(graph: Graph) -> Graph:
    """For each room, return the rooms that it imports."""
    rooms: Graph = {room(name): set() for name in graph}
    for name, imported in graph.items():
        rooms[room(name)].update(room(other) for other in imported)
    return {name: imported - {name} for name, imported in rooms.items()}


def circle(graph: Graph) -> list[str]:
    """Return the names along an import cycle, or an empty list if there is no cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def levels(graph: Graph) -> dict[str, int]:
    """Return the level of each module.

    The level is 1 for a module without imports, else one more than the highest level among its imports.
    """
    level: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        level[name] = 1 + max((level[other] for other in graph[name]), default=0)
    return level


def longest_chain(graph: Graph) -> list[str]:
    """Return a chain of modules that starts at the highest level and in which each imports the next."""
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
        "--imports", action="store_true", help="a longest chain of modules in which each imports the next"
    )
    parser.add_argument("--names", action="store_true", help="names with several meanings, and their modules")
    parser.add_argument("--single", action="store_true", help="modules that exactly one other module imports")
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
    several = meanings()
    in_lab = sum(any(f"{x}.".startswith(f"{LAB}.") for x in where) for where in several.values())
    print(f"names with several meanings {len(several):3}, of the lab {in_lab}")
    for name, where in several.items() if options.names else ():
        print(f"{name:24} {', '.join(where)}")
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
