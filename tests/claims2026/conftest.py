"""Code of the items of the book claims2026."""

from pathlib import Path

import pytest

from jaxattn.lab.study.import_paths import ImportPaths

SHIPPED = Path(__file__).parents[2] / "sweeps" / "claims2026"


@pytest.fixture
def code():
    """Import a function or class from a file of the book, such as ("cells/check.py", "deviation")."""

    def load(file, name):
        path = SHIPPED / file
        return ImportPaths(path.parent).load(f"{path.name}:{name}")

    return load
