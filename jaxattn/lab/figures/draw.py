"""Figures listed in a sweep file: check them before a run, and draw them after it."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

import msgspec

from jaxattn.core.errors import InputError, UserCodeError, in_user_code, nearest
from jaxattn.lab.figures.rendered import Picture, RenderedFigure
from jaxattn.lab.kinds import FIGURES, load_kind
from jaxattn.lab.results.labels import file_name
from jaxattn.lab.results.run import Run
from jaxattn.lab.storage import files
from jaxattn.lab.storage.captions import CustomCaption, read_captions

# Quantities that figures accept but runs do not record, with the metrics from which they are computed.
SOURCE_METRICS: Mapping[str, str] = MappingProxyType({"margin_shortfall": "margin_ratio"})
TOKEN_FIGURES = ("importance", "one_step_law", "top_tokens")
STORED_FIGURE_NOTE = " This is the figure of the run: reading results never executes code from a folder."


FigureProgress = Callable[[str, float], None]


class Problem(NamedTuple):
    """Reason why a figure could not be drawn; includes the traceback if user code raised an exception."""

    line: str
    trace: str


def function(kind: Any, location: str = "figure") -> Callable[..., RenderedFigure]:
    """Return the function (results, **options) -> RenderedFigure that draws figures of a given kind.

    Args:
        kind: one of `kinds.FIGURES`.
        location: location of the kind in the sweep file, for the error message.

    Raises:
        InputError: the kind is unknown.
    """
    if kind not in FIGURES:
        raise InputError(f"{location}.kind: unknown {kind!r}{nearest(kind, list(FIGURES))}")
    return load_kind(FIGURES[kind])


def check_figures(
    specs: Mapping[int, Mapping[str, Any]],
    *,
    phases: Sequence[str],
    axes: Sequence[str],
    without_tokens: Collection[int] = (),
) -> None:
    """Check the figures in a sweep file before the run.

    Args:
        specs: kind and options of each figure, keyed by its index in the sweep file.
        phases: the names of the phases.
        axes: the swept keys.
        without_tokens: indices of cells whose model has no token scores and values.

    Raises:
        InputError: a kind, option, phase or axis is unknown, an option is missing, or a token figure is
            requested for a cell without token scores and values.
    """
    for index, spec in specs.items():
        location = f"figures[{index}]"
        _bind(spec, location)
        if spec["kind"] in TOKEN_FIGURES and spec.get("cell", 0) in without_tokens:
            raise InputError(
                f"{location}: {spec['kind']} requires token scores and values, which the model does not "
                "provide; remove the figure, or define scores_and_values(params) in the model"
            )
        options = ("axis", "x_axis", "y_axis", "lines", "panels")
        for option, allowed in (("phase", phases), *((option, axes) for option in options)):
            if spec.get(option) is not None and spec[option] not in allowed:
                raise InputError(
                    f"{location}.{option}: unknown {spec[option]!r}{nearest(spec[option], allowed)}"
                )


def metrics_of(specs: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    """Return the metrics that the figures use, keyed by location in the sweep file."""
    found = {}
    for number, spec in specs.items():
        for option in ("metric", "metrics", "x", "y"):
            named = spec.get(option) or ()
            several = not isinstance(named, str)
            for k, metric in enumerate(named if several else (named,)):
                location = f"figures[{number}].{option}{f'[{k}]' if several else ''}"
                found[location] = SOURCE_METRICS.get(metric, metric)
    return {location: metric for location, metric in found.items() if metric != "step"}


def draw_figure(results: Run, spec: Mapping[str, Any]) -> RenderedFigure:
    """Draw a figure from its kind and options; options that are None are omitted.

    Raises:
        InputError: a kind or option is unknown, or the run lacks the required data.
    """
    drawing, options = _bind(spec, "figure")
    return drawing(results, **options)


def draw_custom_figure(
    results: Run, drawing: Callable[..., Any], options: Mapping[str, object]
) -> RenderedFigure:
    """Draw a figure with a user-defined function or class, in the common style.

    Args:
        results: a results folder.
        drawing: a function (results, **options), or a class that is constructed with the options and whose
            instances are called with the results. The call returns a `RenderedFigure` or a matplotlib
            figure. A matplotlib figure is named after the function or class, and its caption is the first
            line of the docstring.
        options: options of the figure.

    Raises:
        InputError: the return value is not a figure.
    """
    from matplotlib.figure import Figure  # slow to import

    from jaxattn.lab.figures.style import style

    with style():
        is_class = isinstance(drawing, type)
        found = drawing(**options)(results) if is_class else drawing(results, **options)
    name = getattr(drawing, "__name__", type(drawing).__name__)
    if isinstance(found, Figure):
        words = inspect.getdoc(drawing) or ""
        found = RenderedFigure(name, name.replace("_", " ").capitalize(), words.partition("\n")[0], found)
    if not isinstance(found, RenderedFigure):
        raise InputError(
            f"figure {name}: returned {type(found).__name__}; return a matplotlib Figure or a RenderedFigure"
        )
    # Matplotlib reports an invalid formula only when it renders the figure.
    found.figure.draw_without_rendering()
    return replace(found, name=file_name(found.name))


def draw_all(
    results: Run,
    own: Mapping[str, Callable[..., object]] = MappingProxyType({}),
    progress: FigureProgress = lambda what, share: None,
) -> tuple[list[RenderedFigure | Picture], list[Problem]]:
    """Draw the figures listed in the sweep file; by default, draw curves and token importance.

    Args:
        results: a results folder.
        own: user-defined functions, keyed by their kind "module:function" in the sweep file. A function
            that is missing from `own` is not imported; the figure drawn by the run is shown instead.
        progress: progress callback (what, fraction completed).

    Returns:
        The figures, with distinct names, and one problem per figure that could not be drawn.
    """
    tokens = [{"kind": "importance"}] if len(results.tokens) else []
    specs = results.manifest["config"].get("figures") or [{"kind": "curves"}, *tokens]
    before = _stored_figures(results)
    found: list[RenderedFigure | Picture] = []
    problems: list[Problem] = []
    for number, spec in enumerate(specs):
        kind = str(spec.get("kind"))
        location = f"figures[{number}] ({kind})"
        progress(f"drawing {location}", number / len(specs))
        drawn: RenderedFigure | Picture
        try:
            if ":" not in kind:
                drawn = _draw_guarded(partial(draw_figure, results, spec))
            elif kind in own:
                options = {key: value for key, value in spec.items() if key != "kind" and value is not None}
                drawn = _draw_guarded(
                    partial(draw_custom_figure, results, own[kind], options), _files(own[kind])
                )
            elif number in before:
                drawn = before[number]
            else:
                raise InputError(
                    "not drawn by the run, and loading results never executes custom code; run the "
                    "study again"
                )
        except (InputError, UserCodeError) as error:
            trace = error.trace if isinstance(error, UserCodeError) else ""
            problems.append(Problem(f"{location} could not be drawn: {error}", trace))
            continue
        same = sum(drawn.name == other.name or other.name.startswith(f"{drawn.name}-") for other in found)
        name = f"{drawn.name}-{same + 1}" if same else drawn.name
        found.append(replace(drawn, name=name, number=number))
    return found, problems


def custom_captions(results: Run, figures: Sequence[RenderedFigure | Picture]) -> tuple[CustomCaption, ...]:
    """Return the index, name, title and caption of each user-defined figure."""
    specs = results.manifest["config"].get("figures") or []
    return tuple(
        CustomCaption(each.number, each.name, each.title, each.caption)
        for each in figures
        if each.number is not None and each.number < len(specs) and ":" in str(specs[each.number].get("kind"))
    )


def _draw_guarded(
    drawing: Callable[[], RenderedFigure], files: frozenset[str] = frozenset()
) -> RenderedFigure:
    """Draw a figure, converting exceptions to UserCodeError if user code caused them, else to InputError."""
    try:
        return drawing()
    except InputError:
        raise
    except Exception as error:
        line = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise (UserCodeError(line, files) if in_user_code(error, files, "") else InputError(line)) from error


def _files(drawing: Callable[..., Any]) -> frozenset[str]:
    with suppress(OSError, TypeError):
        return frozenset({inspect.getfile(inspect.unwrap(drawing))})
    return frozenset()


def _stored_figures(results: Run) -> dict[int, Picture]:
    found = {}
    with suppress(InputError):
        drawn = read_captions(results.directory)
        for each in drawn.own:
            name = file_name(each.name)
            path = f"figures/{name}.svg"
            content = files.read_file(
                results.directory / path, results.directory, drawn.sha256.get(path, "none"), files.MAX_JSON
            )
            caption = each.caption.removesuffix(STORED_FIGURE_NOTE) + STORED_FIGURE_NOTE
            found[each.index] = Picture(name, each.title, caption, content, each.index)
    return found


def _bind(spec: Mapping[str, Any], location: str) -> tuple[Callable[..., RenderedFigure], dict[str, Any]]:
    kind = spec.get("kind")
    drawing = function(kind, location)
    options = {key: value for key, value in spec.items() if key != "kind" and value is not None}
    parameters = list(inspect.signature(drawing).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    for key in options:
        if key not in names:
            raise InputError(
                f"{location}: {kind} has no option {key!r} (see docs/reference/sweep_keys.md#figures-figures)"
                f"{nearest(key, names)}"
            )
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in options]
    if missing:
        raise InputError(f"{location}: {kind} requires {' and '.join(map(repr, missing))}")
    types = get_type_hints(drawing, include_extras=True)
    return drawing, {key: _typed(value, types[key], f"{location}.{key}") for key, value in options.items()}


def _typed(value: Any, kind: Any, location: str) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        value = [x.item() if hasattr(x, "item") else x for x in value]
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{location}: {error}; change the value") from None
