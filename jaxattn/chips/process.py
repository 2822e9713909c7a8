"""A process of its own for a chip: its compiler changes what jax does, and ends a process it dislikes."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from jaxattn.chips.compilers import ENVIRONMENT, check, describe
from jaxattn.chips.targets import Target, read_target
from jaxattn.errors import InputError, RunError


def call(
    target: Target,
    function: str,
    arguments: Mapping[str, Any],
    progress: Callable[[str, float], None] = lambda text, share: None,
) -> Any:
    """Call a function in a process whose programs are made for a chip.

    Args:
        target: the chip.
        function: "module:name"; it is called with the target, `progress` and the arguments by name.
        arguments: what JSON can hold.
        progress: told (what it does, the share that is done).

    Returns:
        What the function returns, by way of JSON.

    Raises:
        InputError: no compiler for the chip, or one that does not fit; what the function raises.
        RunError: the process ended without an answer.
    """
    check(target)
    words = [sys.executable, "-m", __name__, target.name, function]
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as noise:
        with subprocess.Popen(
            words,
            env=kept | ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            encoding="utf-8",
        ) as process:
            answer = _talk(process, arguments, progress)
        if answer is None:
            noise.seek(0)
            said = [line.strip() for line in noise if line.strip()] or ["it said nothing"]
            raise RunError(f"target {target.name}: its compiler ended with {process.returncode}: {said[-1]}")
    if "error" in answer:
        raise InputError(answer["error"])
    return answer["result"]


def _talk(
    process: Any, arguments: Mapping[str, Any], progress: Callable[[str, float], None]
) -> dict[str, Any] | None:
    """Hand over the arguments, pass progress on, and return the answer, if there is one."""
    try:
        process.stdin.write(json.dumps(arguments))
        process.stdin.close()
        for line in process.stdout:
            said = json.loads(line)
            if "progress" not in said:
                return said
            progress(*said["progress"])
    except BrokenPipeError:
        return None
    except BaseException:
        process.kill()
        raise
    return None


def main(name: str, function: str) -> None:
    """Answer on standard output, a line of JSON for each thing said; what else is printed is noise."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(said: Any) -> None:
        print(json.dumps(said), file=answers, flush=True)

    target, arguments = read_target(name), json.load(sys.stdin)
    module, _, own = function.partition(":")
    try:
        from jaxattn import backend

        with backend.made_for(describe(target)):
            found = getattr(importlib.import_module(module), own)(
                target, lambda text, share: say({"progress": [text, share]}), **arguments
            )
    except InputError as error:
        say({"error": str(error)})
    else:
        say({"result": found})
    # Not by the usual way out, on which libtpu waits for a chip.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
