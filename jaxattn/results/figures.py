"""Figures by name: what a sweep file asks for, checked before a run and drawn after it."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxattn.results.convergence import convergence
from jaxattn.results.curves import curves
from jaxattn.results.diagram import diagram
from jaxattn.results.importance import importance, one_step_law
from jaxattn.results.load import Results
from jaxattn.results.scaling import scaling
from jaxattn.results.style import Drawn
from jaxattn.results.top_tokens import top_tokens
from jaxattn.errors import InputError

KINDS: dict[str, Callable[..., Drawn]] = {
    "convergence": convergence,
    "curves": curves,
    "diagram": diagram,
    "importance": importance,
    "one_step_law": one_step_law,
    "scaling": scaling,
    "top_tokens": top_tokens,
}


def check(specs: Sequence[Mapping[str, Any]], *, phases: Sequence[str], axes: Sequence[str]) -> None:
    """Check the figures that a sweep file asks for, before anything is computed.

    Args:
        specs: one mapping per figure: its kind, and the options of that kind's function.
        phases: the names of the phases.
        axes: the swept keys.

    Raises:
        InputError: an unknown kind, option, phase or axis, or a missing option.
    """
    for index, spec in enumerate(specs):
        place = f"figures[{index}]"
        _bind(spec, place)
        for option, allowed in (("phase", phases), ("axis", axes), ("x_axis", axes), ("y_axis", axes)):
            if spec.get(option) is not None and spec[option] not in allowed:
                raise InputError(
                    f"{place}.{option}: unknown {spec[option]!r}; {_instead(spec[option], allowed)}"
                )


def draw(results: Results, spec: Mapping[str, Any]) -> Drawn:
    """Draw one figure.

    Args:
        results: a results folder.
        spec: its kind, and the options of that kind's function; an option that is None is left out.

    Returns:
        The figure.

    Raises:
        InputError: an unknown kind or option, or one that this run cannot show.
    """
    function, options = _bind(spec, "figure")
    return function(results, **options)


def draw_all(results: Results) -> tuple[list[Drawn], list[str]]:
    """Draw the figures that the sweep file asked for: without any, curves and token importance.

    Args:
        results: a results folder.

    Returns:
        The figures, their names distinct, and a line for each that could not be drawn.
    """
    tokens = [{"kind": "importance"}] if len(results.tokens) else []
    specs = results.manifest["config"].get("figures") or [{"kind": "curves"}, *tokens]
    figures: list[Drawn] = []
    problems = []
    for index, spec in enumerate(specs):
        try:
            drawn = draw(results, spec)
        except InputError as error:
            problems.append(f"figures[{index}] ({spec.get('kind')}) could not be drawn: {error}")
            continue
        same = sum(drawn.name == other.name or other.name.startswith(f"{drawn.name}-") for other in figures)
        figures.append(replace(drawn, name=f"{drawn.name}-{same + 1}") if same else drawn)
    return figures, problems


def _bind(spec: Mapping[str, Any], place: str) -> tuple[Callable[..., Drawn], dict[str, Any]]:
    kind = spec.get("kind")
    if kind not in KINDS:
        raise InputError(f"{place}.kind: unknown {kind!r}; {_instead(kind, list(KINDS))}")
    options = {key: value for key, value in spec.items() if key != "kind" and value is not None}
    parameters = list(inspect.signature(KINDS[kind]).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    for key in options:
        if key not in names:
            raise InputError(f"{place}: {kind} has no option {key!r}; {_instead(key, names)}")
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise InputError(f"{place}: {kind} needs {parameter.name!r}")
    return KINDS[kind], options


def _instead(given: Any, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(given), allowed, 1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(allowed) or 'none'}"
