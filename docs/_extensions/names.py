"""Links from code in prose to the API pages: `ja.theory.max_margin`, `Corpus` and `exact_flow(scores, p)`.

A name that begins with `ja.` must have an entry on an API page; otherwise the build fails. Inside a
docstring, a short name is first looked up in the documented module, then among the classes of all modules.
"""

import importlib
import re
from collections.abc import Collection, Iterable
from types import ModuleType
from typing import Any

NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?=$|[(\[])")
PACKAGE = "jaxattn"


def target(
    text: str, known: Collection[str], module: str | None = None, own: Collection[str] = ()
) -> str | None:
    """Return the documented name to which code in prose refers, or None if it refers to none.

    Args:
        text: the code, such as `ja.load("results")`. Arguments and indices are ignored.
        known: names of all documented objects, such as `jaxattn.theory.max_margin`.
        module: module of the docstring that contains the code; None outside of docstrings.
        own: names of the arguments and fields that the docstring describes; these are not links.
    """
    found = NAME.match(text)
    if not found:
        return None
    name = found[0]
    first, _, rest = name.partition(".")
    if first in ("ja", PACKAGE) and rest:
        whole = next((x for x in (f"{PACKAGE}.{rest}", canonical(rest)) if x in known), None)
        return whole or _only(x for x in known if x.endswith(f".{rest.rpartition('.')[2]}"))
    if module is None or first in own:
        return None
    if f"{module}.{name}" in known:
        return f"{module}.{name}"
    if not name[0].isupper():
        return None
    return (
        f"{PACKAGE}.{name}"
        if f"{PACKAGE}.{name}" in known
        else _only(x for x in known if x.endswith(f".{name}"))
    )


def _only(names: Iterable[str]) -> str | None:
    found = list(names)
    return found[0] if len(found) == 1 else None


def canonical(path: str) -> str:
    """Return the full name of a public object, such as jaxattn.lab.probes.Norms for `probes.Norms`."""
    module, parts = importlib.import_module(PACKAGE), path.split(".")
    while parts and isinstance(below := getattr(module, parts[0], None), ModuleType):
        module, parts = below, parts[1:]
    return ".".join([module.__name__, *parts])


def is_missing(text: str, resolved: str | None) -> bool:
    """Return whether code in prose must be a link but refers to no documented name."""
    return resolved is None and text.startswith("ja.")


def _described(node: Any) -> tuple[str | None, set[str]]:
    """Return the module whose docstring contains a node, and the names of its arguments and fields."""
    from sphinx import addnodes

    module, own = None, set()
    while node := node.parent:
        if isinstance(node, addnodes.desc) and isinstance(node[0], addnodes.desc_signature):
            module = module or node[0].get("module")
            own |= set(_names(node))
    return module, own


def _names(described: Any) -> Iterable[str]:
    from docutils import nodes
    from sphinx import addnodes

    yield from (
        x.astext().split(":")[0].lstrip("*").strip() for x in described.findall(addnodes.desc_parameter)
    )
    # napoleon writes arguments and attributes in bold.
    yield from (x.astext() for x in described.findall(nodes.strong))


def _link(app: Any, document: Any, page: str) -> None:
    """Replace code in prose by links, after all pages were read."""
    from docutils import nodes
    from sphinx.util import logging
    from sphinx.util.nodes import make_refnode

    entries = app.env.domains.python_domain.objects
    # Sphinx also lists each object under the module that defines it.
    objects = {name: entry for name, entry in entries.items() if not entry.aliased}
    for node in list(document.findall(nodes.literal)):
        if any(isinstance(above, nodes.reference | nodes.title) for above in _above(node)):
            continue
        module, own = _described(node)
        name = target(node.astext(), objects.keys(), module, own)
        if name is not None:
            entry = objects[name]
            link = make_refnode(app.builder, page, entry.docname, entry.node_id, node.deepcopy(), name)
            node.replace_self(link)
        elif is_missing(node.astext(), name):
            logging.getLogger(__name__).warning(
                "%s: has no entry on an API page; use a documented name", node.astext(), location=node
            )


def _above(node: Any) -> Iterable[Any]:
    while node := node.parent:
        yield node


def setup(app: Any) -> dict[str, bool]:
    """Add the links when the pages are written."""
    app.connect("doctree-resolved", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
