"""Print the lowest versions that pyproject.toml allows, as constraints of pip; arguments name extras."""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = [line for name in sys.argv[1:] for line in project["optional-dependencies"][name]]
for requirement in (*project["dependencies"], *extras):
    found = re.match(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", requirement)
    if found is None:
        sys.exit(f"pyproject.toml: {requirement!r} has no lowest version; write one with >=")
    print(f"{found[1]}=={found[2]}")
