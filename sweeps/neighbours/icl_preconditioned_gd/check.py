"""In-context linear regression: a trained layer compared with the closed form of preconditioned descent."""

from icl_preconditioned_gd import least_loss

from jaxattn.lab.books import around, cells, mean

PRIORS = {False: "w ~ N(0, I)", True: "w ~ N(0, 1/Σ)"}
# Text, criterion and closed form by metric.
METRICS = {
    "step_size_1": ("step size along λ = 1 / closed form", around(1.0, 0.02), "1"),
    "step_size_1/4": ("step size along λ = 1/4 / closed form", around(1.0, 0.02), "1"),
    "step_size_1/16": ("step size along λ = 1/16 / closed form", around(1.0, 0.05), "1"),
    "matrix_error": ("relative error of A", around(0.0, 0.05), "0"),
    "other_entries": ("other entries", around(0.0, 0.05), "0"),
    "loss_ratio": ("loss / that of the closed form", around(1.0, 0.005), "1"),
    "loss": ("loss / closed form", around(1.0, 0.02), "1"),
}


def check(results):
    """Compare the trained matrices and the loss at the end of training with the closed form.

    The paper treats w ~ N(0, I); the other prior is added here.
    """
    for cell in cells(results["study"]):
        inverse, length = cell["data.inverse"], cell["data.length"]
        for metric, (text, expected, published) in METRICS.items():
            samples = cell.last(metric, "train") / (least_loss(length, inverse) if metric == "loss" else 1)
            basis = "beyond" if inverse else "published"
            id = f"{'inverse' if inverse else 'identity'}.{metric}"
            about = {"expected": expected, "published": published, "basis": basis}
            yield mean(id, f"{PRIORS[inverse]}: {text}", samples, **about)
