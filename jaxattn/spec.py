"""Settings of one thing: what a sweep file may say of it, beside what it does."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

# Steps and sizes are 32-bit numbers in compiled programs.
_MOST = 2**31 - 1
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
HalfShare = Annotated[float, msgspec.Meta(ge=0, le=0.5)]
Names = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]

STATIC = "static"
# Marks a float that Python code decides by: cells that differ in it are programs of their own.
Static = Annotated[T, STATIC]


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings classes: frozen, by keyword, with defaults."""

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
