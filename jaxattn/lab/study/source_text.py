"""Reduce source code to what determines results: no comments, no formatting, no docstrings.

The reduced code is the same for all versions of Python that can read the source.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any

_READS_TEXT = re.compile(rb"__doc__|getdoc|get_docstring|getsource")


def reads_text(contents: Iterable[bytes]) -> bool:
    """Return whether code contains a name with which code reads docstrings or source code."""
    return any(_READS_TEXT.search(content) for content in contents)


def reduced(content: bytes) -> bytes:
    """Return a source file without comments, formatting and docstrings; compiled modules are unchanged."""
    try:
        return "\n".join(_nodes(ast.parse(content))).encode()
    except (SyntaxError, ValueError):
        return content


def _nodes(tree: ast.AST) -> Iterator[str]:
    """Yield one line per node of a syntax tree, parents first.

    Empty fields are left out, because each version of Python adds some. `ast.dump` contains them.
    """
    left: list[Any] = [tree]
    while left:
        x = left.pop()
        if isinstance(x, ast.AST):
            fields = {name: y for name, y in ast.iter_fields(x) if y is not None and y != []}
            yield f"{type(x).__name__}({', '.join(fields)})"
            left += reversed(fields.values())
        elif isinstance(x, list):
            kept = [y for y in x if not _is_text(y)]
            yield f"{len(kept)} of a list"
            left += reversed(kept)
        else:
            # `repr` of strings and of long integers depends on the version of Python.
            yield f"{type(x).__name__} {hex(x) if type(x) is int else ascii(x)}"


def _is_text(x: Any) -> bool:
    """Return whether a node is a string on its own, such as a docstring, which computes nothing."""
    return isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant) and isinstance(x.value.value, str)
