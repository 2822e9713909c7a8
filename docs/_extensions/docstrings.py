"""Conversion of docstrings for autodoc: formulas become mathematics, and everything else plain text."""

import inspect
import re
import typing
from typing import Any

import msgspec

from jaxattn.core.settings import MAX_INT, meanings
from jaxattn.core.spec import Spec

SECTIONS = {"Args:", "Returns:", "Raises:", "Attributes:", "Source:", "Example:", "Yields:", "Note:"}
WORDS = {"argmin", "argmax", "exp", "log", "max", "min", "softmax", "vec", "diag", "cos", "tanh", "sup"}
# Two letters or more, and names of code such as duality_gap.
NAME = r"[A-Za-z]{2,}(?:_[a-z]{2,}[a-z_]*)?"
SIGNS = {
    "ᵀ": r"^{\top}", "⁺": r"^{+}", "⁻¹": r"^{-1}", "²": "^{2}", "³": "^{3}", "⁰": "^{0}", "¹": "^{1}",
    "½": r"\tfrac12 ", "≠": r"\ne ",
    "‖": r"\Vert ", "∂": r"\partial ", "∇": r"\nabla ", "Σ": r"\sum ", "∫": r"\int ",
    "≥": r"\ge ", "≤": r"\le ", "∈": r"\in ", "·": r"\cdot ", "⊗": r"\otimes ", "→": r"\to ", "∞": r"\infty ",
    "±": r"\pm ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "η": r"\eta ",
    "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "π": r"\pi ",
    "Φ": r"\Phi ", "ℓ": r"\ell ", "Â": r"\hat{A}", "𝒯": r"\mathcal{T}", "×": r"\times ",
}  # fmt: skip


BRACKETS = {"(": 1, "[": 1, ")": -1, "]": -1}
BOUNDS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}


def latex(line: str) -> str:
    """Convert a formula of a docstring, such as p·(E_s - E_s') ≥ 1 for all X, or √(1 - v_mm), to LaTeX."""
    line = re.sub(r" {2,}", r" \\quad ", line.strip().replace(" \\ ", " ∖ "))
    line = line.replace("s.t.", r"\text{ s.t. }")
    for before, after in ((r"\^\(", "^{"), (r"√\(", r"\sqrt{")):
        while found := re.search(before, line):
            end = _closing(line, found.end())
            line = f"{line[: found.start()]}{after}{line[found.end() : end]}}}{line[end + 1 :]}"
    line = re.sub(r"_\(([^()]*)\)", r"_{\1}", line).replace("η0", "η_0")
    line = re.sub(r"√(\d+|[^\W\d_](?:_\w+)?)", r"\\sqrt{\1}", line)
    line = re.sub(rf"(?<![\\\w{{]){NAME}(?: {NAME})*(?![A-Za-z0-9])", _words, line, flags=re.ASCII)
    line = re.sub(r"_([A-Za-z0-9]+)('*)", lambda m: f"_{{{_name(m[1])}{m[2]}}}", line)
    return "".join(SIGNS.get(sign, sign) for sign in line.replace("⁻¹", SIGNS["⁻¹"]))


def _first(text: str) -> str:
    """Return the first of several arguments that are separated by commas."""
    depth = 0
    for place, sign in enumerate(text):
        depth += BRACKETS.get(sign, 0)
        if sign == "," and not depth:
            return text[:place]
    return text


def _closing(line: str, begin: int) -> int:
    """Return the index of the bracket that closes the one opened just before index `begin`."""
    depth = 1
    for place in range(begin, len(line)):
        depth += BRACKETS.get(line[place], 0)
        if not depth:
            return place
    return len(line)


def _name(name: str) -> str:
    return rf"\mathrm{{{name}}}" if len(name) > 1 else name


def _words(found: re.Match[str]) -> str:
    """Typeset words in a formula: a function, a differential, a name of code, or words between formulas."""
    made = ""
    for word in found[0].split(" "):
        if word in WORDS:
            made += rf"\operatorname{{{word}}} "
        elif re.fullmatch(r"d[A-Z]|d[a-z]", word):
            made += f"{word} "
        else:
            made += rf"\text{{ {word.replace('_', ' ')} }}"
    return made.replace("}\\text{ ", "")


def _plain(line: str) -> str:
    """Escape the characters of reStructuredText markup, except inside backticks."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*|]|_(?!\w))", r"\\\1", part) for part in parts
    )


def written(lines: list[str]) -> list[str]:
    """Convert the lines of a docstring to reStructuredText."""
    made: list[str] = []
    formula: list[str] = []
    section = ""

    def close() -> None:
        plain = [line.strip() for line in formula]
        if any(re.match(r"(class|def) |[\w/]+ {3,}(the|a) ", line) for line in plain):
            made.extend(["::", "", *formula, ""])
        elif formula:
            rows = r" \\ ".join(latex(line) for line in plain)
            made.extend([".. math::", "", rf"   \begin{{array}}{{l}} {rows} \end{{array}}", ""])
        formula.clear()

    for line in lines:
        indented = line.startswith("    ")
        if line.strip() in SECTIONS and not indented:
            section = line.strip()
        elif line and not line.startswith(" "):
            section = ""
        if indented and not section:
            formula.append(line)
            continue
        if line.strip() or not formula:
            close()
            made.append(line if section == "Example:" else _plain(line))
    close()
    return made


def bounds(annotation: Any) -> str:
    """Return the range of an annotated type in words, such as "at least 1" for Meta(ge=1); "" without one."""
    words = []
    for part in (annotation, *typing.get_args(annotation)):
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta):
                # Omit the 32-bit upper bound on sizes, which is never reached in practice.
                words += [
                    f"{word} {getattr(meta, name):g}"
                    for name, word in BOUNDS.items()
                    if getattr(meta, name) not in (None, MAX_INT)
                ]
                words += ["not empty"] if meta.min_length else []
    return " and ".join(dict.fromkeys(words))


def with_settings(lines: list[str], target: type[Spec]) -> list[str]:
    """Return the docstring of a settings class with all its own and inherited settings, and their ranges."""
    meaning = meanings(target)
    # A class that is generated from a function has its docstring, whose arguments are not all settings.
    lines = lines[: lines.index("Args:")] if "Args:" in lines else lines
    types = typing.get_type_hints(target, include_extras=True)
    fields = {field.name: bounds(types[field.name]) for field in msgspec.structs.fields(target)}
    own = {found[1] for line in lines if (found := re.match(r"    (\w+): ", line))}
    made = [line.rstrip() for line in lines]
    for name in fields.keys() & own:
        first = next(k for k, line in enumerate(made) if line.startswith(f"    {name}: "))
        last = first
        while last + 1 < len(made) and made[last + 1].startswith("        "):
            last += 1
        made[last] = _with_range(made[last], fields[name])
    missing = [name for name in fields if name not in own and name in meaning]
    entries = [_with_range(f"    {name}: {meaning[name]}", fields[name]) for name in missing]
    if entries and "Attributes:" not in made:
        made += ["", "Attributes:"]
    at = made.index("Attributes:") + 1 if entries else 0
    return made[:at] + entries + made[at:]


def _with_range(text: str, words: str) -> str:
    return f"{text.removesuffix('.')} ({words})." if words else text


def _process(app: Any, what: str, name: str, target: Any, options: Any, lines: list[str]) -> None:
    if what == "class" and issubclass(target, Spec):
        lines[:] = with_settings(lines, target)
    lines[:] = written(lines)


def _skip(app: Any, what: str, name: str, target: Any, skip: bool, options: Any) -> bool | None:
    """Skip fields, which the docstring of their class lists, and members that many classes share."""
    return True if type(target).__name__ == "_tuplegetter" or name in ("replace", "function") else None


def _signature(
    app: Any, what: str, name: str, target: Any, options: Any, given: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Return a signature with public names of types, without ranges, and with the values of constants."""
    return given and with_values(_public(given), target), returned and _public(returned)


def with_values(signature: str, target: Any) -> str:
    """Replace constants, such as GRADIENT_RTOL, by their values, if these are numbers or strings."""
    scope = getattr(inspect.unwrap(target), "__globals__", {})

    def value(found: re.Match[str]) -> str:
        x = scope.get(found[1])
        return f"= {x!r}" if isinstance(x, int | float | str) else found[0]

    return re.sub(r"= (_?[A-Z][A-Z0-9_]+)(?=[,)])", value, signature)


def _public(text: str) -> str:
    while found := re.search(r"~?(?:typing\.)?Annotated\[", text):
        end = _closing(text, found.end())
        text = text[: found.start()] + _first(text[found.end() : end]) + text[end + 1 :]
    text = re.sub(r"str \| type\[~?[\w.]+\] \| ~?[\w.]*dtype \| ~?[\w.]*SupportsDType", "DTypeLike", text)
    text = text.replace("jaxlib._jax.Array", "Array").replace("<factory>", "...")
    return re.sub(r"<class '([\w.]+)'>", r"\1", text)


def setup(app: Any) -> dict[str, bool]:
    """Register the conversion of docstrings, before napoleon reads their sections, and of signatures."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
