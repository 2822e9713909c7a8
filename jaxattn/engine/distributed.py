"""Many hosts: each is a shard of the sweep, told apart by jax.distributed."""

import jax

from jaxattn.errors import InputError


def join(text: str) -> tuple[int, int]:
    """Join the other processes and tell which shard this one is.

    Args:
        text: "auto" where the cluster tells (Slurm, Open MPI, Kubernetes, TPU pods), else
            "HOST:PORT,N,I": where process 0 listens, how many processes there are, and which one this is.

    Returns:
        I + 1 and N, as for a shard. Lanes never talk to each other, so neither do the processes but at the
        end; each runs its units on its own devices.

    Raises:
        InputError: text that says neither, or processes that cannot be joined.
    """
    arguments: dict[str, str | int] = {}
    if text != "auto":
        address, *counts = text.split(",")
        if len(counts) != 2 or not all(x.strip().isdecimal() for x in counts) or ":" not in address:
            raise InputError(
                f"--distributed {text}: expected auto or HOST:PORT,N,I, for example localhost:9876,2,0"
            )
        processes, process = map(int, counts)
        if process >= processes:
            raise InputError(f"--distributed {text}: processes are numbered 0 to {processes - 1}")
        arguments = {"coordinator_address": address, "num_processes": processes, "process_id": process}
    try:
        jax.distributed.initialize(**arguments)  # type: ignore[arg-type]
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"--distributed {text}: cannot join the other processes: {reason}") from None
    return jax.process_index() + 1, jax.process_count()


def wait() -> None:
    """Wait until every process has come here."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("jaxattn")
