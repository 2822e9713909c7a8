"""Trying a batch: what fails is named in one line, and takes no other batch with it."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

from jaxattn.engine.batches import Batch
from jaxattn.engine.progress import Reporter
from jaxattn.engine.store import Store
from jaxattn.errors import in_user_code

OnFailure = Literal["stop", "continue", "retry"]
RETRIES = 2


class Tried(NamedTuple):
    """What came of a batch: the lanes that failed, why it could not be run, and whether memory ran out."""

    failed: list[dict[str, Any]]
    error: str = ""
    out_of_memory: bool = False


def attempt(
    run: Callable[[], list[dict[str, Any]]],
    batch: Batch,
    folder: Store,
    reporter: Reporter,
    on_failure: OnFailure,
    files: frozenset[str],
) -> Tried:
    """Run a batch, and again if it fails and that is asked for.

    Args:
        run: runs it and returns the lanes that failed.
        batch: which one.
        folder: what is to forget it before it is tried again.
        reporter: told so.
        on_failure: "retry" tries again.
        files: files of the user's code, whose errors are the user's.
    """
    for number in range(1 + RETRIES * (on_failure == "retry")):
        if number:
            reporter.note(f"{batch.name}: failed, trying again")
            folder.forget(batch.name)
        tried = _try(run, batch.name, reporter, files)
        if not (tried.failed or tried.error) or (tried.out_of_memory and batch.width > 1):
            break
    return tried


def _try(
    run: Callable[[], list[dict[str, Any]]], name: str, reporter: Reporter, files: frozenset[str]
) -> Tried:
    try:
        return Tried(run())
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        lines = str(error).strip().split("\n")
        if any(file in str(error) for file in files):
            # A callback raised; JAX has shown where.
            return Tried([], f"{lines[-1]} in code that your functions call back")
        reason = lines[0] or type(error).__name__
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in reason:
            return Tried([], f"{reason}; a single lane needs a smaller problem, or more memory", True)
        return Tried([], f"{reason}; smaller batches may help: --max-memory or --set chunk=...")
    except Exception as error:
        if not (found := in_user_code(error, files, "")):
            raise
        reporter.trace(name, found)
        return Tried([], str(found))
