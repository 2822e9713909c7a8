"""What a worker of an executor does: it computes one batch, or plans how many runs fit in its memory.

A worker gets a `Job`, which can be pickled, and writes to the results folder like any other process. Its code
and its files must be those of the process that submitted the job.
"""

import hashlib
import os
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from jaxattn.core import backend
from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.engine import batches, description, devices, machine
from jaxattn.lab.engine.attempt import Attempt, attempt
from jaxattn.lab.engine.batches import Batch, Source
from jaxattn.lab.engine.monitor import Intervals, RunMonitor
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.storage.batch_record import BatchCell, BatchRecord
from jaxattn.lab.storage.copies import naming
from jaxattn.lab.storage.memo import Memo
from jaxattn.lab.storage.workplace import Workplace
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.groups import CompileGroup, compile_groups
from jaxattn.lab.study.identity import identities, package_hash
from jaxattn.lab.study.import_paths import ImportPaths

# Seconds between looks whether another process has finished the batch.
LOOK_S = 1.0
# A worker may have several threads, but a process computes one batch at a time.
_ONE = threading.Lock()


class LocalPool(NamedTuple):
    """A process pool, whose workers share the cores and the GPUs of this machine.

    Attributes:
        workers: number of workers.
        name: name that no other pool on this machine has at the same time.
    """

    workers: int
    name: str

    def take_share(self) -> None:
        """Take a share of the cores, and one GPU that no other worker uses, if there are several workers."""
        devices.use_all_cores(max(1, (os.cpu_count() or 1) // self.workers))
        if self.workers > 1 and self not in _NUMBERS:
            _NUMBERS[self] = self._number()
            devices.use_one_gpu(_NUMBERS[self][0])

    def _number(self) -> tuple[int, int]:
        import fcntl  # not on all platforms

        for number in range(self.workers):
            path = Path(tempfile.gettempdir(), f"jaxattn-{self.name}-{number}.lock")
            file = os.open(path, os.O_CREAT | os.O_WRONLY)
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return number, file
            os.close(file)
        raise RunError(f"executor: more than {self.workers} workers; state their number")


# The number of this worker in its pool, with an open file that is locked until the process ends.
_NUMBERS: dict[LocalPool, tuple[int, int]] = {}


class Origin(NamedTuple):
    """The study of a job, and the process that submitted it.

    Attributes:
        study: the pickled study; see `pickle_study`.
        directory: path or bucket URL of the results folder.
        command: the command, which is stored with the results.
        process: host and number of the process.
        code: hashes of custom code and of files, by name.
        computing: hash of the modules of this package that determine results.
        pool: the process pool of the worker; None for other executors.
    """

    study: bytes
    directory: str
    command: str
    process: tuple[str, int]
    code: dict[str, str | None]
    computing: str
    pool: LocalPool | None = None


class Task(NamedTuple):
    """A batch: its cells with their identities, its runs, and what it continues; see `Batch`."""

    cells: tuple[BatchCell, ...]
    runs: tuple[tuple[int, int], ...]
    source: Source | None
    is_last: bool
    intervals: Intervals


class Job:
    """A call of a function in a worker."""

    def __init__(self, payload: bytes) -> None:
        """Store the arguments, as pickled by `job`."""
        self.payload = payload

    def __call__(self) -> Any:
        """Call the function."""
        function, *arguments = pickle.loads(self.payload)
        with _ONE, naming():
            return function(*arguments)

    def checkpoint(self) -> Any:
        """Return what submitit submits again if the job is preempted, which resumes the batch."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def process() -> tuple[str, int]:
    """Return the host and the number of this process."""
    return socket.gethostname(), os.getpid()


def pickle_study(study: Definition) -> bytes:
    """Pickle what defines a study; objects of a notebook need cloudpickle.

    Raises:
        InputError: an object cannot be pickled.
    """
    names = study.names
    content = study.written, str(names.folder.resolve()), names.given
    loose = [path for path in names.given if path.startswith("__main__:") or "<locals>" in path]
    try:
        if not loose:
            return pickle.dumps(content)
        import cloudpickle

        found: bytes = cloudpickle.dumps(content)
    except ModuleNotFoundError:
        raise InputError(
            f"{loose[0]}: workers cannot import it; run pip install cloudpickle, or move it to a file, such "
            "as mine.py"
        ) from None
    except Exception as error:
        raise InputError(
            f"the study cannot be sent to workers ({error}); move its code to a file, such as mine.py"
        ) from None
    return found


def compute(origin: Origin, task: Task) -> Attempt:
    """Compute a batch in a worker."""
    here = _prepare(origin)
    here.check(task.cells)
    cells = {cell.number: cell for cell in here.study.cells}
    runs = tuple((cells[number], seed) for number, seed in task.runs)
    batch = Batch(here.groups[runs[0][0].number], runs, task.source)
    folder = Memo(Path(origin.directory))
    folder.refresh()
    record = description.origin(origin.command, origin.code, batch)
    place = Workplace(folder, BatchRecord(task.cells, task.runs, record))
    while not place.is_superseded():
        if any(one.is_running for one in place.others()):
            time.sleep(LOOK_S)
            folder.refresh()
            continue
        monitor = RunMonitor(Reporter(quiet=True), lambda entry, series: place.log(entry), task.intervals)
        monitor.begin_batch(batch, 0, 1)
        with monitor.stopping(), backend.precision(here.study.dtype):
            tried = attempt(here.study, batch, here.cache, place, monitor, task.is_last)
        return tried._replace(where=f"worker on {socket.gethostname()}: {machine.devices_here()}")
    return Attempt()


def widths(
    origin: Origin, runs: Mapping[int, int], max_memory: int | None, shards: int, raising: frozenset[int]
) -> dict[int, int]:
    """Return how many runs of each compile group to compute together, as far as a worker's memory allows.

    `runs` is the number of runs of each group. See `batches.widths` for the other arguments.
    """
    here = _prepare(origin)
    groups = compile_groups(here.study.cells)
    missing = {number: [(groups[number].cells[0], 0)] * count for number, count in runs.items()}
    with backend.precision(here.study.dtype):
        return batches.widths(here.study, missing, groups, here.cache, max_memory, shards, raising)


class _Prepared(NamedTuple):
    """A study in a worker.

    Attributes:
        groups: the compile group of each cell.
        settings: the settings and files of each cell, as a hash.
    """

    study: Definition
    groups: dict[int, CompileGroup]
    cache: ProgramCache
    settings: dict[int, str]

    def check(self, cells: tuple[BatchCell, ...]) -> None:
        """Raise InputError if cells have other settings or files here."""
        if any(self.settings[cell.cell] != cell.setting for cell in cells):
            raise InputError(
                f"{socket.gethostname()}: the files of the study differ from those of the process that runs "
                "it; use files that all workers share"
            )


def _prepare(origin: Origin) -> _Prepared:
    if process() == origin.process:
        raise InputError(
            "executor: its workers are threads of this process; use one whose workers are processes, such as "
            "concurrent.futures.ProcessPoolExecutor"
        )
    if package_hash() != origin.computing:
        raise InputError(f"{socket.gethostname()}: has another version of jaxattn; install the same one")
    if origin.pool:
        origin.pool.take_share()
    else:
        devices.use_all_cores()
    # The same study may have other code or files by now.
    key = hashlib.sha256(origin.study + repr(sorted(origin.code.items())).encode()).hexdigest()
    if key not in _LAST:
        _LAST.clear()
        _LAST[key] = _read(origin)
    return _LAST[key]


# The study that this worker read last, by the hash of its pickled form, its code and its files.
_LAST: dict[str, _Prepared] = {}


def _read(origin: Origin) -> _Prepared:
    tree, folder, given = pickle.loads(origin.study)
    study = Definition(tree, ImportPaths(folder, given))
    cache = ProgramCache()
    identity, code = identities(study, cache.inputs)
    for name, found in code.items():
        # Objects that were sent are those of the other process; they may be hashed in another way here.
        if name not in given and found != origin.code.get(name):
            raise InputError(
                f"{socket.gethostname()}: {name} differs from that of the process that runs the study; use "
                "files that all workers share"
            )
    groups = {cell.number: group for group in compile_groups(study.cells) for cell in group.cells}
    return _Prepared(study, groups, cache, {number: one.setting for number, one in identity.items()})


def job(function: Any, *arguments: Any) -> Job:
    """Return a job that calls a function of this module."""
    return Job(pickle.dumps((function, *arguments)))


def origin_of(
    study: Definition, directory: str, command: str, code: Mapping[str, str | None], pool: LocalPool | None
) -> Origin:
    """Return the origin of the jobs that this process submits."""
    return Origin(pickle_study(study), directory, command, process(), dict(code), package_hash(), pool)
