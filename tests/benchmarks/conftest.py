"""Let tests import the scripts of benchmarks/ as the scripts import each other."""

import sys
from pathlib import Path

# At the end, because a script may have the name of a package.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
