"""Make the scripts of benchmarks/ importable."""

import sys
from pathlib import Path

# The folder is last in sys.path, because a script may have the name of a package.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
