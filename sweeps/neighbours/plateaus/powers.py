"""Analysis of plateaus: powers of d and T in their lengths."""

import numpy as np

from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge


def powers(results, item) -> Measured:
    """Fit log plateau = c + x log d + z log T to the cells of each block, for each seed."""
    records = results.with_axes(results.records[results.records["metric"] == "plateau"])
    last = records[records["step"] == records["step"].max()]
    findings = []
    for block, rows in last.groupby("block", sort=False):
        wide = rows.pivot_table(index=["data.dim", "data.length"], columns="seed", values="value")
        d, T = (np.log(wide.index.get_level_values(x).to_numpy(float)) for x in wide.index.names)
        fit = np.linalg.lstsq(np.stack([np.ones_like(d), d, T], 1), np.log(wide.to_numpy()), rcond=None)[0]
        for name, samples in zip(("d", "T"), fit[1:], strict=True):
            finding = Finding(f"{block}: power of {name}", judge.mean(samples), f"{wide.shape[1]} seeds")
            findings.append(finding)
    table = last.groupby(["block", "data.dim", "data.length"])["value"].mean().reset_index()
    return Measured(
        findings, {"Length of the plateau, mean over seeds": table.rename(columns={"value": "time"})}
    )
