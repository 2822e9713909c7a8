"""Query-key symmetry: symmetry and directionality of encoders and decoders."""

from jaxattn.lab.books import around, at_least, cells, mean

EXPECTED = {
    "start": (around(0.03125, 0.05), "1/32"),
    "encoder.symmetry": (at_least(0.1), "0.36, 0.40, 0.62"),
    "decoder.symmetry": (around(-0.4, 0.4), "-0.47, -0.55, -0.19"),
    "encoder.directionality": (around(0.46, 0.3), "0.34, 0.60, 0.44"),
    "decoder.directionality": (around(0.36, 0.3), "0.36, 0.39, 0.33"),
}


def check(results):
    """Measure the symmetry at the start and at the end, and the directionality at the end."""
    study = results["study"]
    table = study.records.pivot_table(index=["metric", "cell", "step", "seed"], values="value")["value"]
    end, last = study.records["step"].max(), {}
    for cell in cells(study):
        name = cell.name
        for id, text, samples in (
            ("start", "symmetry at the start", table["symmetry", cell.cell, 0]),
            ("symmetry", "symmetry", table["symmetry", cell.cell, end]),
            ("directionality", "directionality", table["directionality", cell.cell, end]),
        ):
            expected, published = EXPECTED["start" if id == "start" else f"{name}.{id}"]
            yield mean(f"{name}.{id}", f"{name}: {text}", samples, expected=expected, published=published)
        last[name] = table["symmetry", cell.cell, end]
    difference = last["encoder"] - last["decoder"]
    about = {"expected": at_least(0.3), "published": "0.83, 0.95, 0.81"}
    yield mean("difference", "symmetry of encoder - decoder", difference, **about)
