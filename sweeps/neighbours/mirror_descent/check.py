"""Mirror descent: distance of W from the max-margin directions of three norms, and the largest attention."""

from jaxattn.lab.books import around, at_least, cells

NAMES = {
    "7/4": "q = 1.75",
    "2": "q = 2",
    "3": "q = 3",
    "7/4, all digits": "q = 1.75, without cancellation errors",
    "2, all digits": "q = 2, without cancellation errors",
    "3, all digits": "q = 3, without cancellation errors",
}
# Divergences at most this count as convergence.
CLOSE = 0.0075
ATTENTION = {"expected": at_least(0.9), "published": "tends to 1"}


def check(results):
    """Measure the divergence to the direction of each norm, the certificates, and the attention."""
    every = cells(results["study"])
    for q in ("1.75", "2", "3"):
        for cell in every:
            text = f"{NAMES[cell.name]}: Bregman divergence to the direction with q' = {q}"
            expected, published = divergence(cell.name, q)
            yield cell.final(f"divergence_to_{q}", text, expected=expected, published=published)
    for q in ("1.75", "2", "3"):
        for cell in every:
            text = f"{NAMES[cell.name]}: duality gap of the max-margin problem with q' = {q}"
            yield cell.final(f"gap_{q}", text, expected=around(0.0, 1e-8))
    for cell in every:
        yield cell.final("largest_attention", f"{NAMES[cell.name]}: mean largest attention", **ATTENTION)


def divergence(block, q):
    """Return the criterion: 0 for the block's norm; steps without cancellation errors avoid the others."""
    own, _, digits = block.partition(", ")
    if own.replace("7/4", "1.75") == q:
        return around(0.0, CLOSE), "tends to 0"
    return (at_least(CLOSE), "stays away") if digits else (None, "")
