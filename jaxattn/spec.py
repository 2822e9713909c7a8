"""Settings of one thing: what a sweep file may say of it, beside what it does."""

import msgspec


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings classes: frozen, by keyword, with defaults."""
