"""One-step law for the change in E·v after one gradient step of size η0 on E."""

import numpy as np

from jaxattn.lab.books import cells, mean, powers


def one_step_law(results, id, *, expected):
    """Fit the exponents of d in both errors of the one-step law for each seed.

    For token s, let E_s⁰ and E_s¹ be the embeddings before and after the step, and α_s the average signed
    frequency. The error in the values is max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0. For K classes, it is the
    maximum of this expression over the classes. The error in the embeddings is
    max_s ‖E_s¹ - E_s⁰ - (η0/2) α_s v‖ / η0. The step is linear in η0, so neither error depends on η0.

    Except for text data, the error in the values times √d is also measured at the largest d. For text data,
    the most frequent of thousands of tokens determines the maximum. The error of each seed then behaves like
    a single normal variable, so the interval is wide.

    Args:
        results: a run with at least two values of d.
        id: prefix of the ids.
        expected: criterion for the exponents.

    Source:
        Lemma 4.1 of arXiv 2505.17282, and its public review thread for K classes.
    """
    every = cells(results)
    dims = [cell["model.dim"] for cell in every]
    where = f"{every[0].data}, d = {', '.join(map(str, dims))}"
    for name, of, metric in (
        ("values", "values E·v", "one_step_error"),
        ("embeddings", "embeddings E", "embedding_error"),
    ):
        errors = np.stack([cell.last(metric, "step") for cell in every], axis=1)
        yield mean(
            f"{id}.{name}",
            f"exponent of d in the error of the {of}",
            powers(dims, errors),
            expected=expected,
            basis="theory",
            claim=f"the error of the one-step law in the {of} falls like d^(-1/2)",
            setting=where,
        )
    if not every[0].of_texts:
        largest = every[-1].last("one_step_error", "step") * np.sqrt(dims[-1])
        yield mean(
            f"{id}.constant",
            f"error of the values E·v, times √d, at d = {dims[-1]}",
            largest,
            basis="beyond",
            claim="the constant of the one-step law",
            setting=where,
        )
