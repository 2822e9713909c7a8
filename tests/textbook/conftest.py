"""Let tests import the textbook as a package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
