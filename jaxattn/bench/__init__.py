"""What a machine needs for a step of each kind: measured, held against the plan, and laid side by side."""

from jaxattn.bench.cases import CASES, Case
from jaxattn.bench.measurement import (
    Machine,
    Measured,
    Report,
    bandwidth,
    beside,
    machine,
    measure,
    read,
    table,
    write,
)

__all__ = [
    "CASES",
    "Case",
    "Machine",
    "Measured",
    "Report",
    "bandwidth",
    "beside",
    "machine",
    "measure",
    "read",
    "table",
    "write",
]
