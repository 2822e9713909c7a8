"""Component types of a study: data, models, losses, initial values, phases, probes and figures.

Each type has its built-in kinds (`jaxattn.lab.kinds`), and accepts custom classes and functions.
`python -m jaxattn.lab.study.concepts` prints the table in docs/howto/extending.md.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from jaxattn.base import (
    Data,
    DrawnData,
    Figure,
    Loss,
    Measurement,
    Model,
    Phase,
    PhaseProbe,
    Probe,
    SharedData,
    Start,
)
from jaxattn.base.from_function import settings_class
from jaxattn.base.model import LossFromFunction, StartFromFunction, model_class
from jaxattn.base.probe import FigureFromFunction, ProbeFromFunction
from jaxattn.core.settings import markdown_table
from jaxattn.core.spec import Spec
from jaxattn.data.from_function import data_class
from jaxattn.dynamics.flows import flow_phase
from jaxattn.lab import kinds
from jaxattn.models.starts import kind_of

C = TypeVar("C", bound=Spec)


@dataclass(frozen=True, eq=False)
class Concept(Generic[C]):
    """Component type, such as model or loss, with the requirements for its classes.

    Attributes:
        name: name with an article, such as "a model".
        location: key in a sweep file.
        known: built-in classes by short name.
        bases: base classes, each mapped to the attributes that a derived class must define.
        from_function: function that builds a class from a function and its `kind`; None if only classes are
            accepted.
        functions: signatures of the accepted functions.
        extra_calls: calls that derived classes must support, keyed by the name of the base class; these take
            precedence over `bases`.
        default: function that infers the kind of a table from its keys.
    """

    name: str
    location: str
    known: Mapping[str, type[C]]
    bases: Mapping[type[C], tuple[str, ...]]
    from_function: Callable[..., type[C]] | None = None
    functions: tuple[str, ...] = ()
    extra_calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default: Callable[[dict[str, Any]], str | None] = lambda table: None

    @property
    def classes(self) -> dict[str, list[str]]:
        """Method calls that a derived class must support, keyed by the name of the base class."""
        own = {base.__name__: [_call(base, name) for name in names] for base, names in self.bases.items()}
        return own | {name: list(calls) for name, calls in self.extra_calls.items()}

    @property
    def requirement(self) -> str:
        """Description of the classes and functions accepted as this component, for error messages."""
        (name, calls), *_ = self.classes.items()
        written = f"a class derived from jaxattn.{name} with {' and '.join(calls)}"
        return f"a function {self.functions[0]}, or {written}" if self.functions else written


def _call(base: type, name: str) -> str:
    method = inspect.getattr_static(base, name)
    if isinstance(method, property):
        return name
    _, *parameters = inspect.signature(method).parameters.values()
    needed = [p.replace(annotation=p.empty) for p in parameters if p.default is p.empty]
    return f"{name}{inspect.Signature(needed)}"


DATA = Concept[Data](
    "data",
    "`[data]`",
    kinds.classes(kinds.DATA),
    {DrawnData: ("draw",), SharedData: ("load",)},
    data_class,
    ("(key, *, settings) -> Dataset", "(*, settings) -> Dataset"),
)
MODEL = Concept[Model[Any]](
    "a model",
    "`[model]`",
    kinds.classes(kinds.MODELS),
    {Model: ("init", "outputs")},
    model_class,
    ("(*, settings) -> model",),
)
LOSS = Concept[Loss](
    "a loss",
    "`loss`",
    kinds.classes(kinds.LOSSES),
    {Loss: ("__call__",)},
    functools.partial(settings_class, base=LossFromFunction),
    ("(outputs, targets, *, settings) -> (n,)",),
    default=lambda table: "classification",
)
START = Concept[Start](
    "a start",
    "`model.init.NAME`",
    kinds.classes(kinds.STARTS),
    {Start: ("__call__",)},
    functools.partial(settings_class, base=StartFromFunction),
    ("(key, drawn, *, settings) -> array",),
    default=kind_of,
)
PHASE = Concept[Phase](
    "a phase",
    "`[[phases]]`",
    kinds.classes(kinds.PHASES),
    {Phase: ("train", "steps")},
    flow_phase.from_function,
    ("(params, task, *, points, settings) -> RecordedPath",),
    extra_calls={"Phase": ("train", "steps", "step(task, state)")},
)
PROBE = Concept[Measurement](
    "a probe",
    "`probes.own`",
    kinds.classes(kinds.PROBES),
    {Probe: ("measure",), PhaseProbe: ("metrics", "observe", "conclude")},
    functools.partial(settings_class, base=ProbeFromFunction),
    ("(params, data, *, settings) -> number",),
    {
        "Probe": ("measure(context)",),
        "PhaseProbe": (
            "metrics",
            "observe(phase, state) -> array",
            "conclude(history, params, model, loaded) -> {name: (S, k)}, {name: (S,)}",
        ),
    },
)
FIGURE = Concept[Figure](
    "a figure",
    "`[[figures]]`",
    {},
    {Figure: ("__call__",)},
    functools.partial(settings_class, base=FigureFromFunction),
    ("(results, *, settings) -> matplotlib figure",),
)
CONCEPTS: tuple[Concept[Any], ...] = (DATA, MODEL, LOSS, START, PHASE, PROBE, FIGURE)


def table() -> str:
    """Return the Markdown table for docs/howto/extending.md, with one row per component type."""
    rows = []
    for concept in CONCEPTS:
        functions = " or ".join(f"`{form}`" for form in concept.functions)
        classes = (
            f"`ja.{base}` with {', '.join(f'`{call}`' for call in calls)}"
            for base, calls in concept.classes.items()
        )
        rows.append([concept.name, concept.location, functions, "; ".join(classes)])
    optimizer = ["an optimiser", "`optimizer`", "`(step_size, *, settings) -> optax transformation`", ""]
    return markdown_table(["concept", "in a sweep file", "plain function", "class"], [*rows, optimizer])


if __name__ == "__main__":
    print(table())
