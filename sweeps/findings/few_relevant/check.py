"""Few relevant tokens: the share of seeds in which attention ignores a label, inside the predicted window."""

from jaxattn.lab.books import at_least, cells, load_code, share

# A label is ignored if fewer than HALF of its sequences have their relevant token on top. The edges are those
# of the median seed, so at least HALF of the seeds ignore a label between them.
HALF = 0.5


def check(results):
    """Measure the share of seeds that ignore a label, for each R and η0.

    Source:
        docs/notes/which_label.md.
    """
    return [ignores(cell) for cell in cells(results["study"])]


def ignores(cell):
    """Measure the share of seeds that ignore a label in a cell, whose η0 is inside of the window."""
    label_window = load_code(__file__, "../label_window/label_window.py:label_window")
    names = ("relevant", "length", "vocab_size", "sequences")
    relevant, step_size = cell["data.relevant"], cell["phases.step.step_size"]
    window = label_window(**{x: cell[f"data.{x}"] for x in names}, dim=cell["model.dim"])
    assert window.lower < step_size < window.upper, (step_size, window)
    return share(
        f"r={relevant}-eta0={step_size:g}",
        f"R = {relevant}, η0 = {step_size:g}: seeds in which a label is ignored",
        cell.last("kept") < HALF,
        expected=at_least(HALF),
        basis="theory",
        claim=f"a label is ignored inside of the predicted window (R = {relevant})",
        setting=cell.setting,
        certificate=f"predicted for η0 from {window.lower:.0f} to {window.upper:.0f}",
        why=cell.failure_reason,
    )
