"""What a sweep file is made of, and the built-in things of each kind by their short names; see `base`.

`python -m jaxattn.study.concepts` writes the table of docs/extending.md.
"""

from typing import Any

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
from jaxattn.core import docstrings
from jaxattn.data import GENERATORS, READERS
from jaxattn.dynamics import PHASES
from jaxattn.losses import LOSSES
from jaxattn.models import MODELS
from jaxattn.probes import PROBES
from jaxattn.study import starts, user_functions
from jaxattn.study.kinds import Concept

DATA = Concept[Data](
    "data",
    "`[data]`",
    {**GENERATORS, **READERS},
    {DrawnData: ("draw",), SharedData: ("load",)},
    user_functions.data,
    ("(key, *, settings) -> Dataset", "(*, settings) -> Dataset"),
    {"Generator": ("generate(key, sequences)",)},
)
MODEL = Concept[Model[Any]]("a model", "`[model]`", MODELS, {Model: ("init", "outputs")})
LOSS = Concept[Loss](
    "a loss",
    "`loss`",
    LOSSES,
    {Loss: ("__call__",)},
    user_functions.loss,
    ("(outputs, targets, *, settings) -> (n,)",),
    default=lambda table: "classification",
)
START = Concept[Start](
    "a start",
    "`model.init.NAME`",
    starts.STARTS,
    {Start: ("__call__",)},
    user_functions.start,
    ("(key, drawn, *, settings) -> array",),
    default=starts.kind_of,
)
PHASE = Concept[Phase](
    "a phase",
    "`[[phases]]`",
    PHASES,
    {Phase: ("train", "steps")},
    further={"Phase": ("train", "steps", "step(task, state)")},
)
PROBE = Concept[Measurement](
    "a probe",
    "`probes.own`",
    PROBES,
    {Probe: ("measure",), PhaseProbe: ("metrics", "observe", "conclude")},
    user_functions.probe,
    ("(params, data, *, settings) -> number",),
)
FIGURE = Concept[Figure](
    "a figure",
    "`[[figures]]`",
    {},
    {Figure: ("__call__",)},
    user_functions.figure,
    ("(results, *, settings) -> matplotlib figure",),
)
CONCEPTS: tuple[Concept[Any], ...] = (DATA, MODEL, LOSS, START, PHASE, PROBE, FIGURE)


def table() -> str:
    """Write what a user may write, a row for each concept, in Markdown for docs/extending.md."""
    rows = []
    for concept in CONCEPTS:
        functions = " or ".join(f"`{form}`" for form in concept.functions)
        classes = (
            f"`ja.{base}` with {', '.join(f'`{call}`' for call in calls)}"
            for base, calls in concept.classes.items()
        )
        rows.append([concept.name, concept.place, functions, "; ".join(classes)])
    optimizer = ["an optimiser", "`optimizer`", "`(step_size, *, settings) -> optax transformation`", ""]
    return docstrings.table(["concept", "in a sweep file", "plain function", "class"], [*rows, optimizer])


if __name__ == "__main__":
    print(table())
