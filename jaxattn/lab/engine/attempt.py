"""An attempt to compute a batch, which may end with failed seeds, an exception, or a lack of memory."""

from typing import Any, Literal, NamedTuple

import jax

from jaxattn.core.errors import in_user_code
from jaxattn.lab.engine.batch_run import run_batch
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.engine.monitor import RunMonitor
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.storage.workplace import Workplace
from jaxattn.lab.study.definition import Definition

OnFailure = Literal["stop", "continue", "retry"]
RETRIES = 2


class Attempt(NamedTuple):
    """How an attempt to compute a batch ended. It can be pickled.

    Attributes:
        failures: the failed seeds; see `run_batch`.
        reason: why the batch could not be computed, as one line; "" if it was computed.
        trace: frames of the traceback in the user's code; "" if there are none.
        is_too_large: True if the batch did not fit in memory and has several runs.
        where: the host and the devices of the worker that computed it; "" for this process.
    """

    failures: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    trace: str = ""
    is_too_large: bool = False
    where: str = ""

    @property
    def failed(self) -> bool:
        """True if a seed failed, or the batch could not be computed."""
        return bool(self.failures or self.reason)


def attempt(
    study: Definition, batch: Batch, cache: ProgramCache, place: Workplace, monitor: RunMonitor, is_last: bool
) -> Attempt:
    """Compute a batch, or resume it.

    Args:
        study: the study.
        batch: the batch.
        cache: cache of compiled programs.
        place: the folder in which the batch is computed.
        monitor: receives the progress.
        is_last: False to keep nothing if a seed fails or an exception is raised, because the batch is tried
            again.

    Raises:
        Interrupted: the run was asked to stop; a checkpoint has been saved.
        RunError, InputError: the folder cannot be written, or the data cannot be used.
    """
    place.claim()
    try:
        failures = run_batch(batch, cache, place, monitor, keep_failures=is_last)
    except Exception as error:
        if is_out_of_memory(error) and batch.width > 1:
            # A device with more memory can resume a state that it has saved.
            if place.has_state:
                place.leave("does not fit in memory here")
            else:
                place.forget()
            return Attempt(is_too_large=True)
        if not (reason := _reason(study, error)):
            place.leave()
            raise
        found = Attempt(reason=reason[0], trace=reason[1])
    except BaseException:
        place.leave()
        raise
    else:
        found = Attempt(tuple(failures))
    if found.failed and not is_last:
        place.forget()
    elif found.reason:
        place.leave(found.reason)
    return found


def _reason(study: Definition, error: Exception) -> tuple[str, str] | None:
    """Return the reason why a batch failed, and a traceback, or None if the error must stop the run."""
    files = study.names.files(study.custom_kinds)
    if isinstance(error, jax.errors.JaxRuntimeError | MemoryError):
        lines = str(error).strip().split("\n")
        if any(file in str(error) for file in files):
            # A user's callback raised an exception, and JAX has printed the traceback.
            return f"{lines[-1]} in a callback of your functions", ""
        remedy = "smaller batches may help: --max-memory or --set chunk=..."
        if is_out_of_memory(error):
            remedy = "a single seed does not fit; make the problem smaller, or use more memory"
        return f"{lines[0] or type(error).__name__}; {remedy}", ""
    found = in_user_code(error, files, "")
    return None if found is None else (str(found), found.trace)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception says that memory is exhausted."""
    first = str(error).strip().partition("\n")[0]
    return isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in first
    )
