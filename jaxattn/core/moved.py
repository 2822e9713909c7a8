"""Names that moved in version 0.3 and their new locations, for error messages about the old names."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# Commands and command-line options that moved, with their replacements.
COMMANDS = {
    "bench": "a script of the repository: python benchmarks/bench.py --out FILE",
    "cite": "a page of the documentation: docs/howto/cite.md, with BibTeX entries in docs/howto/jaxattn.bib",
    "plan --target": "a script of the repository: python benchmarks/chips/plan.py SWEEP --target CHIP",
    "reproduce --book": "the first argument: jaxattn reproduce BOOK",
}
# Keys of item.toml that moved, each with the table or key that replaces it.
KEYS = {
    "measure": "[[measures]]",
    "criteria": "[measures.criteria]",
    "needs": "needs below [[measures]]",
}
# Former full names of modules, with their new names or locations. Submodules moved with them if the new
# location is in jaxattn.
MODULES = {
    **{
        f"jaxattn.{name}": f"jaxattn.lab.{name}"
        for name in ("api", "bisection", "cli", "diagnosis", "engine", "explorer", "probes", "results")
    },
    "jaxattn.storage": "jaxattn.lab.storage",
    "jaxattn.study": "jaxattn.lab.study",
    "jaxattn.reproduction": "jaxattn.lab.books",
    **{
        f"jaxattn.data.{name}": f"jaxattn.lab.texts.{name}"
        for name in ("cache", "files", "labelled", "readers", "source", "tables", "text")
    },
    "jaxattn.bench": "benchmarks/bench.py of the repository",
    "jaxattn.chips": "benchmarks/chips of the repository",
    "jaxattn.theory.cover": "sweeps/findings/which_cover/cover.py of the repository",
    "jaxattn.theory.label_window": "sweeps/findings/label_window/label_window.py of the repository",
    "jaxattn.theory.joint_limit": "sweeps/findings/which_mixture/joint_limit.py of the repository",
    "jaxattn.theory.joint_head": "sweeps/findings/which_mixture/joint_head.py of the repository",
    "jaxattn.theory.joint_direction": "sweeps/findings/which_mixture/joint_direction.py of the repository",
    "jaxattn.theory.lq_margin": "sweeps/neighbours/lq_margin.py of the repository",
}
# Public names that have moved out of a module that still exists, each with the module that defined it before
# 0.3. `MODULES` maps that module to its new location.
NAMES = {
    "jaxattn.theory": {
        "TokenCover": "jaxattn.theory.cover",
        "greedy_cover": "jaxattn.theory.cover",
        "minimum_cover": "jaxattn.theory.cover",
        "LabelWindow": "jaxattn.theory.label_window",
        "label_window": "jaxattn.theory.label_window",
        "JointLimit": "jaxattn.theory.joint_limit",
        "certify_joint_limit": "jaxattn.theory.joint_limit",
        "lq_max_margin": "jaxattn.theory.lq_margin",
    }
}
# Public names removed in version 0.3, each with a suggested replacement.
REMOVED = {
    "Algorithm": "derive a class from ja.Phase",
    "Generator": "write a function (key, *, settings) -> Corpus",
    "Info": "call ja.dynamics.loss_and_gradients",
    "descent": "use ja.dynamics.Descent and ja.dynamics.run",
    "early_stop": "set patience in ja.dynamics.Descent",
    "log_descent": "use ja.dynamics.LogDescent and ja.dynamics.run",
}
# Renamed attributes of base classes.
ATTRIBUTES = {"may_be_settings": "overridable", "why_not": "skip_reason"}


def new_location(module: str) -> str:
    """Return the new name or location of a module, or "" if the module did not move."""
    for old, new in MODULES.items():
        if module == old or (module.startswith(f"{old}.") and new.startswith("jaxattn.")):
            return new + module.removeprefix(old)
    return ""


def hint(package: str, name: str) -> str:
    """Return "; moved to ..." or "; removed ..." for a name that version 0.3 moved or removed, else ""."""
    if remedy := REMOVED.get(name):
        return f"; removed in version 0.3: {remedy}"
    old = NAMES.get(package, {}).get(name) or f"{package}.{name}"
    new = new_location(old)
    return f"; moved to {new} in version 0.3" if new else ""


class Finder:
    """Import hook that loads nothing, but raises an error with the new name if the requested module moved."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError, with the new name in its message, if the module moved."""
        if new := new_location(name):
            raise ModuleNotFoundError(f"No module named {name!r}; moved to {new} in version 0.3", name=name)
        return None


def install() -> None:
    """Append the finder to `sys.meta_path`, so that it is called only for modules that were not found."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
