"""Command that checks whether this machine can run studies."""

from jaxattn.lab.cli.console import print_table, print_wrapped
from jaxattn.lab.cli.options import compiled_folder


def doctor() -> int:
    """Check that this machine can run studies.

    Check the versions of Python and the packages, devices, float64, known jaxlib bugs, the cache folders and
    free disk space. The exit status is 1 if a check fails.

    Example: jaxattn doctor
    """
    import pandas as pd

    from jaxattn.lab.engine.machine import examine

    findings = examine(compiled_folder())
    print_table("Doctor", pd.DataFrame(findings))
    print_wrapped("To time this machine, run `python benchmarks/bench.py` in a checkout of the repository.")
    return int(any(finding.state == "broken" for finding in findings))
