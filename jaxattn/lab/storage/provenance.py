"""Provenance of results: comparison of the package source that produced them with the installed source."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxattn.core.version import __version__

_PACKAGE = Path(__file__).parents[2]


@cache
def installed() -> dict[str, str | None]:
    """Return the package's version, a hash of all its modules, and its git commit if it is a checkout."""
    state = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        state.update(f"{path.relative_to(_PACKAGE)}\0{len(content)}\0".encode() + content)
    return {"version": version("jaxattn"), "commit": _commit(), "source": state.hexdigest()[:16]}


def version(name: str) -> str | None:
    """Return the version of an installed package, or None if the package is not installed."""
    if name == _PACKAGE.name:
        # In an editable installation, the metadata may be older than the source.
        return __version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_versions(manifest: Mapping[str, Any]) -> list[dict[str, str | None]]:
    """Return the versions of the package that produced a run, in the format of `installed`.

    Old manifests lack the hash of all modules.
    """
    old = {"version": manifest.get("versions", {}).get("jaxattn"), "commit": manifest.get("git_commit")}
    return list(manifest.get("made_by") or [old])


def version_warning(made_by: Sequence[Mapping[str, str | None]]) -> str:
    """Return a note if the results were produced by code that differs from the installed package, else ""."""
    now = installed()
    keys = [("source",) if one.get("source") else ("version", "commit") for one in made_by]
    if all(one.get(key) == now[key] for one, own in zip(made_by, keys, strict=True) for key in own):
        return ""
    package_versions = ", then ".join(dict.fromkeys(map(_words, made_by)))
    changed = ", with changes since" if package_versions == _words(now) else ""
    return f"made by {package_versions}; this is {_words(now)}{changed}"


def _words(one: Mapping[str, str | None]) -> str:
    commit = one.get("commit")
    return f"jaxattn {one.get('version') or 'of unknown version'}" + (
        f" at commit {commit[:12]}" if commit else ""
    )


def _commit() -> str | None:
    command = ["git", "-C", str(_PACKAGE), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
