"""Attention SVM, p alone: certified optimal values, the starts that select the first token, and distances."""

from attention_svm_p import program

from jaxattn.lab.books import Finding, around, slug

CASES = {
    "global": "one input, global selection",
    "local": "one input, local selection",
    "three": "three inputs",
    "three, in three coordinates": "three inputs, in three coordinates",
}
STEPS = {
    "normalised": "normalised steps",
    "all digits": "normalised steps without cancellation errors",
    "flow": "exact flow",
    "descent": "gradient descent",
}
# Half a unit in the last published digit of ½‖p‖².
DIGIT = 5e-6
VALUES = {
    "global": (around(0.49505, DIGIT), "0.49505"),
    "local": (around(0.5, DIGIT), "0.50000"),
    "three, in three coordinates": (around(0.31319, DIGIT), "0.31319"),
}
# Of six starts.
SELECTED = {
    "global": (around(6.0, 0.0), "all six"),
    "local": (around(4.0, 0.0), "four of six"),
    "three": (around(6.0, 0.0), "all six"),
}


def check(results):
    """Certify the published programs, and count the starts of each block that select the first token."""
    programs = {"global": program("global"), "local": program("local", token=1), "three": program("three")}
    programs["three, in three coordinates"] = program("three", coordinates=3)
    for case, x in programs.items():
        text = f"{CASES[case]}: optimal value ½‖p‖² of the max-margin problem"
        expected = VALUES.get(case, (None, ""))
        yield exactly(f"{slug(case)}.value", text, x.p @ x.p / 2, expected, "certificate", x.duality_gap)
    gaps, text = (
        [x.duality_gap for x in programs.values()],
        "largest duality gap of the four max-margin problems",
    )
    yield exactly("gap", text, max(gaps), (around(0.0, 1e-8), ""), "certificate")
    study = results["study"]
    last = study.records.groupby(["cell", "metric"])["value"].last().unstack()
    for block, rows in last.join(study.cells.set_index("cell")["block"]).groupby("block", sort=False):
        case, _, steps = block.partition(", ")
        name, first = f"{CASES[case]}, {STEPS[steps]}", (rows["first_attention"] > 0.5).sum()
        text = f"{name}: number of starts that select the first token"
        yield exactly(f"{slug(block)}.selected", text, first, SELECTED[case], "6 starts")
        text = f"{name}: largest 1 - cos to the certified direction over the six starts"
        away = rows["one_minus_cosine"].max()
        yield exactly(f"{slug(block)}.distance", text, away, distance(block, steps), "6 starts")


def distance(block, steps):
    """Return the criterion for the largest distance: none for gradient descent, which is slow."""
    if steps == "flow":
        return around(0.0, 1e-9), "tends to 0"
    if steps == "normalised" or block == "local, all digits":
        return around(0.0, 0.01), "tends to 0"
    return None, ""


def exactly(id, text, value, expected, unit, gap=0.0):
    """Build a finding for a number known exactly, or known to lie between value (1 - gap) and value."""
    criterion, published = expected
    interval = (float(value * (1 - gap)), float(value))
    return Finding(id, text, float(value), interval, expected=criterion, published=published, unit=unit)
