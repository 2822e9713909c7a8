"""Settings of one thing: what a sweep file may say of it, beside what it does."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

T = TypeVar("T")

# Sizes and places are 32-bit integers in every program.
MOST = 2**31 - 1
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
HalfShare = Annotated[float, msgspec.Meta(ge=0, le=0.5)]
Names = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]

STATIC = "static"
# Marks a float that Python code decides by: cells that differ in it are programs of their own.
Static = Annotated[T, STATIC]


S = TypeVar("S", bound="Spec")


@runtime_checkable
class Places(Protocol):
    """Where names in a sweep file point."""

    def load(self, name: str) -> Any:
        """Import what an import path names."""

    def path(self, text: str) -> Path:
        """Find a file, relative to the sweep file's folder."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings classes: frozen, with the annotated fields as settings.

    Attributes:
        may_be_settings: attributes with a default that a subclass may make a setting.
        takes_further: name of a setting that takes in all unknown ones, such as options of an optimiser.
        made_of: the user's function that it is made of, and
        kind: its import path, as the study names it.
    """

    may_be_settings: ClassVar[frozenset[str]] = frozenset()
    takes_further: ClassVar[str | None] = None
    made_of: ClassVar[Callable[..., Any] | None] = None
    kind: ClassVar[str] = ""

    def located(self: S, names: Places) -> S:
        """Return it with code imported and files found that settings name."""
        return self

    def check(self, *context: Any) -> None:
        """Raise InputError, naming the setting and the remedy, if these settings do not fit together."""


class Named(NamedTuple):
    """Code that a setting names by its import path.

    Attributes:
        name: the path, as in the sweep file.
        target: what it means.
    """

    name: str
    target: Callable[..., Any]

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Call it."""
        return self.target(*arguments, **settings)
