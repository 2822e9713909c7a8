"""A claim: a statement left ≤ right about integer instances, with the functions that search and prove."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from jaxattn.core.errors import InputError
from jaxattn.lab.refute.space import Instance, Space
from jaxattn.lab.study.import_paths import ImportPaths


class Sides(NamedTuple):
    """Both sides of the statement left ≤ right for one instance, in exact arithmetic.

    Attributes:
        left: left side.
        right: right side.
        witness: where the sides are compared, such as {"step": 575, "token": 1}; numbers, fractions, texts,
            or lists and arrays of them.
        boundary: reason why the instance is a degenerate case, such as a tie or an empty sum; "" if it is
            not. A degenerate case falsifies the wording of a statement, and a hypothesis that excludes such
            cases repairs it.
    """

    left: Fraction
    right: Fraction
    witness: Mapping[str, Any] = {}
    boundary: str = ""

    @property
    def violated(self) -> bool:
        """Whether left > right."""
        return self.left > self.right


class Evidence(NamedTuple):
    """Outcome of a numerical computation for one instance, next to its exact target.

    Attributes:
        contradicts: True if the computation ended as required, its certificate holds, and the interval
            excludes what the statement predicts.
        status: how the computation ended, such as "norm".
        certificate: what was certified, with its bounds.
        quantity: name of the measured quantity.
        low: lower end of its interval.
        high: upper end of its interval.
        predicted: value that the statement predicts.
        interval: how the interval was computed.
    """

    contradicts: bool
    status: str
    certificate: str
    quantity: str
    low: float
    high: float
    predicted: float
    interval: str


@dataclass(frozen=True)
class Claim:
    """A statement about all instances of a space, in the form left ≤ right.

    Attributes:
        statement: the statement, in one or two sentences.
        source: arXiv id, version, number and place of the theorem, and from which text it was read.
        hypothesis: the assumptions of the theorem, as quoted.
        space: integer instances to search.
        score: function of one instance (JAX arrays) that returns a scalar: positive if the statement seems
            violated, larger for candidates closer to a violation, -inf outside the assumptions. It is
            vectorised with `jax.vmap`. With `batched`, the function takes a batch with a leading axis (NumPy
            arrays), and returns an array of scores.
        assumptions: function of one instance that returns "" if the assumptions of the statement hold, in
            exact arithmetic, or else the assumption that fails.
        exact: function of one instance that returns both sides in exact arithmetic; see `Sides`.
        control: an instance for which the statement holds; `check.py` tests it next to the counterexample.
        check: file name, relative to the claim's file, of a script that derives both sides from the integers
            with the standard library alone; "" for none. See `jaxattn.lab.refute.proof`.
        horizon: description of the horizon T of the search, such as "600 steps".
        evidence: for a statement on a numerical flow, function that runs it with certificate and interval;
            None if `exact` decides the statement.
        exact_target: with `evidence`, whether `exact` computes the target of the flow in exact arithmetic.
        repaired: the statement with the missing hypothesis, for the record; "" if unknown.
        batch: number of instances per batch.
        batched: whether `score` takes a batch.
        flows: number of instances per batch whose flow a batched score integrates; shrinking tests as many
            candidates together. 0 for all instances.
        size: function that returns a key to compare instances; see `jaxattn.lab.refute.shrink.default_size`
            for the default.
        fixed: axes whose length shrinking must not change, because `score` or `exact` depends on it.
        draw: function of one instance and a Matplotlib Axes that draws it, for example with the functions of
            `jaxattn.lab.refute.picture`; None for no picture.
    """

    statement: str
    source: str
    hypothesis: str
    space: Space
    score: Callable[[Any], Any]
    assumptions: Callable[[Instance], str]
    exact: Callable[[Instance], Sides]
    control: Mapping[str, Any]
    check: str = ""
    horizon: str = ""
    evidence: Callable[[Instance], Evidence] | None = None
    exact_target: bool = True
    repaired: str = ""
    batch: int = 4096
    batched: bool = False
    flows: int = 0
    size: Callable[[Instance], Any] | None = None
    fixed: Sequence[str] = field(default=())
    draw: Callable[[Instance, Any], None] | None = None

    @property
    def kind(self) -> str:
        """Verdict for a counterexample.

        It is "falsified" if `exact` decides the statement. For a numerical flow, it is "numerical
        counterexample", and ", exact target" is appended if the target is exact.
        """
        if self.evidence is None:
            return "falsified"
        return "numerical counterexample" + ", exact target" * self.exact_target


def read_claim(name: str) -> Claim:
    """Import a claim.

    Args:
        name: path of a Python file that defines `claim`, or "FILE.py:NAME" for another name.

    Raises:
        InputError: the file does not exist, or does not define a claim, or its space is invalid.
        UserCodeError: the file raises an exception when it is imported.
    """
    file, attribute = split(name)
    found = ImportPaths(file.parent).load(f"{file.name}:{attribute}")
    if not isinstance(found, Claim):
        kind = type(found).__name__
        raise InputError(f"{name}: {attribute} is a {kind}; assign a jaxattn.lab.refute.Claim to it")
    found.space.check()
    if found.check and not (file.parent / found.check).is_file():
        raise InputError(f"{name}: check: {file.parent / found.check} does not exist; write it, or use ''")
    return found


def split(name: str) -> tuple[Path, str]:
    """Return the file and the attribute of "FILE.py:NAME"; the default attribute is `claim`.

    Raises:
        InputError: the file is not a Python file.
    """
    location, _, attribute = name.partition(":")
    file = Path(location)
    if file.suffix != ".py":
        raise InputError(f"{name}: expected a Python file that defines a claim, such as mine.py")
    return file.resolve(), attribute or "claim"


def label(name: str) -> str:
    """Return a short name for a claim's results folder: the file's stem, and the attribute if not `claim`."""
    file, attribute = split(name)
    return file.stem if attribute == "claim" else f"{file.stem}_{attribute}"
