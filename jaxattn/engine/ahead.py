"""Programs that are compiled before they are called, in threads, while others are traced, compiled and run.

XLA compiles without Python's lock. Tracing stays where programs are called, and so does running them: two
programs that run at once on several devices of a CPU may wait for each other for ever.
"""

import os
from collections.abc import Callable, Container
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from jaxattn import backend
from jaxattn.data.splits import Loaded
from jaxattn.engine.groups import CompileGroup
from jaxattn.engine.program import Made, make_keys
from jaxattn.engine.shapes import shaped
from jaxattn.storage import checkpoints

# Each holds the memory of a compiler.
THREADS = 4


class Ahead:
    """Compiles the programs of batches."""

    def __init__(self) -> None:
        """Begin with nothing; threads start when there is something to compile."""
        self._pool: ThreadPoolExecutor | None = None

    def compile(
        self,
        group: CompileGroup,
        lanes: int,
        made: Made,
        loaded: Loaded | None = None,
        without: Container[str] = (),
    ) -> None:
        """Trace the programs of a batch and have them compiled, in the order in which they are called.

        What raises is left for the call, which raises too.

        Args:
            group: cells that share programs.
            lanes: how many there are.
            made: the functions that will be called.
            loaded: the text that lanes share, None if they share none.
            without: programs that are not to be, by their places, such as "query.advance".
        """
        if lanes in made.ahead:
            return
        made.ahead.add(lanes)
        self.close()
        pool = self._pool = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "compile")

        def submit(compile: Callable[[], Any]) -> Future[None]:
            return pool.submit(_compile, compile, group.setting.dtype)

        try:
            submit(make_keys.lower(jax.ShapeDtypeStruct((lanes,), jnp.uint32)).compile)
            for program in shaped(group, lanes, loaded, made):
                if program.place not in without:
                    program.compiled.compile_ahead(submit, *program.arguments)
        except Exception:
            return
        finally:
            # The first checkpoint comes after them.
            pool.submit(checkpoints.prepare)

    def close(self) -> None:
        """Leave out what has not begun, and wait for the rest."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _compile(compile: Callable[[], Any], dtype: str) -> None:
    # Settings of JAX are a thread's own.
    with backend.precision(dtype):
        compile()
