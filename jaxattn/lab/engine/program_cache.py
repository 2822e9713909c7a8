"""Cache of compiled programs: those of the current compile group, and those of recent settings."""

import gc
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

from jaxattn.base import Progress, SharedData, silent
from jaxattn.core.errors import RunError
from jaxattn.core.spec import Spec
from jaxattn.data.splits import Loaded
from jaxattn.lab.engine.programs import Programs
from jaxattn.lab.study import seed
from jaxattn.lab.study.groups import CompileGroup, without
from jaxattn.lab.study.inputs import Inputs
from jaxattn.lab.study.setting import PARTS, Setting, hyperparameters, numbers_of, parts


class ProgramCache:
    """Cache shared by batches: the last data loaded, and the programs for the current compile group.

    Attributes:
        inputs: hashes of the files that are read.
    """

    def __init__(self, loading: Progress = silent) -> None:
        """Create an empty cache. `loading` is the progress callback for loading data."""
        self._loading, self.inputs = loading, Inputs()
        self._text: tuple[Any, Loaded] | None = None
        self._last: tuple[CompileGroup, Programs] | None = None

    def of(self, group: CompileGroup) -> Programs:
        """Return the programs of a group, loading its data first if necessary.

        Raises:
            InputError: the data cannot be used.
        """
        if self._last is None or self._last[0] is not group:
            compiled = self._last is not None and self._last[1].compiled
            self._last = None
            _collect(compiled)
            self._last = group, self._make(group.setting)
        return self._last[1]

    def check_inputs(self) -> None:
        """Raise RunError if a file has changed since it was hashed; it may have been read since then."""
        try:
            self.inputs.check()
        except RunError:
            _KNOWN.clear()
            raise

    def _make(self, setting: Setting) -> Programs:
        data = setting.data
        if not isinstance(data, SharedData):
            return programs(setting)
        if self._text is None or self._text[0] != data:
            self._text = data, data.load(self._loading)
            seed.check_data(self._text[1])
        # Compiled functions hold references to the data, so do not keep the functions after the run.
        return Programs(setting, self._text[1])


def programs(setting: Setting) -> Programs:
    """Return the programs for a setting that has no shared data, reusing programs compiled in this process.

    Settings with custom code always get new programs, because global variables may have changed. Programs
    contain the arrays of files that the setting names, so they are those of the contents of these files.
    They do not depend on the numeric settings in `hyperparameters`, which are their arguments; all other
    settings, such as the thresholds of the standard probes, are constants of the programs.
    """
    numbers = hyperparameters(setting)
    try:
        key = _constants(setting), tuple(numbers), tuple(Inputs().of(setting).items())
    except _UserCode:
        return Programs(setting)
    if key not in _KNOWN:
        if len(_KNOWN) == MAX_KNOWN:
            _collect(_KNOWN.pop(next(iter(_KNOWN))).compiled)
        _KNOWN[key] = Programs(setting)
    return _KNOWN[key]


def _collect(compiled: bool) -> None:
    """Collect the garbage of discarded programs if they were compiled.

    Programs are part of reference cycles. Compiled programs hold memory maps, of which a process may have
    65,530. A collection takes longer than tracing the programs of a small setting.
    """
    if compiled:
        gc.collect()


_KNOWN: dict[Hashable, Programs] = {}


MAX_KNOWN = 8


class _UserCode(Exception):
    """Raised if a setting contains custom code."""


def _constants(setting: Setting) -> Hashable:
    """Return a key of all that is constant in the programs of a setting: all but the `hyperparameters`."""
    constant = []
    for path, part in parts(setting).items():
        kept = msgspec.structs.asdict(part)
        for number, _ in numbers_of(part):
            kept = without(kept, number)
        constant.append((path, _builtin(part), _identity(kept)))
    rest = {name: x for name, x in setting._asdict().items() if name not in PARTS}
    rest["probes"] = msgspec.structs.replace(setting.probes, own=())
    return tuple(constant), _identity(rest)


def _builtin(x: Spec) -> type[Spec]:
    if type(x).__module__.startswith("jaxattn."):
        return type(x)
    raise _UserCode


def _identity(x: Any) -> Hashable:
    """Return a key for settings; raise _UserCode if they contain custom code."""
    match x:
        case None | bool() | int() | float() | str():
            return type(x), x
        case Spec():
            return _builtin(x), _identity(msgspec.structs.asdict(x))
        case Mapping():
            return Mapping, tuple((name, _identity(value)) for name, value in x.items())
        case tuple() | list():
            return type(x), tuple(map(_identity, x))
    raise _UserCode
