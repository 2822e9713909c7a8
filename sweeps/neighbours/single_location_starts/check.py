"""Single-location regression from many starts: how many fail, and where all of them end."""

import pandas as pd
from single_location_starts import OVERLAPS

from jaxattn.lab.books import around, cells, mean, share

NAMES = {
    "sphere, λ = 0.1": "starts on the sphere, λ = 0.1",
    "manifold, λ = 0.1": "starts on the manifold, λ = 0.1",
    "sphere, λ falls from 1": "starts on the sphere, λ decreasing from 1",
}
# Criterion and published value of the share of starts that fail, and of the final |κ| of all others.
EXPECTED = {
    "sphere, λ = 0.1": ((around(0.47, 0.19), "14 of 30"), (around(0.982, 0.002), "0.982")),
    "manifold, λ = 0.1": ((around(0.0, 0.12), "0 of 30"), (around(0.982, 0.002), "0.9807 to 0.983")),
}


def check(results):
    """Measure the share of starts that end with |κ| or |ν| below 1/2, and the alignment of all others."""
    for cell in cells(results["study"]):
        wide, reached = ends(cell)
        failed, aligned = EXPECTED.get(cell.name, ((None, ""), (None, "")))
        name = NAMES[cell.name]
        about = {"unit": "start", "expected": failed[0], "published": failed[1]}
        yield share(f"{cell.id}.fail", f"{name}: share of starts that fail", ~reached, **about)
        about = {"unit": "start", "expected": aligned[0], "published": aligned[1]}
        text = f"{name}: final |κ| of the successful starts"
        yield mean(f"{cell.id}.kappa", text, wide["kappa"][reached], **about)


def ends(cell):
    """Return the final metrics, one row per start, and whether the start succeeded."""
    last = cell.records[cell.records["step"] == cell.records["step"].max()]
    wide = last.pivot_table(index="seed", columns="metric", values="value")
    return wide, (wide[["kappa", "nu"]] >= 0.5).all(axis=1)


def tables(results):
    """Return the mean overlaps of successful and failed starts."""
    rows = []
    for cell in cells(results["study"]):
        wide, reached = ends(cell)
        for kind, chosen in (
            ("aligned with the solution", wide[reached]),
            ("other alignment", wide[~reached]),
        ):
            means = chosen[[*OVERLAPS, "loss"]].mean().rename(OVERLAPS)
            row = {"start": NAMES[cell.name], "end": kind, "starts": len(chosen)}
            rows.append(row | means.to_dict())
    return {"Ends of the starts, means of absolute values": pd.DataFrame(rows)}
