"""Let tests import the problems of this folder as a package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
