"""Token importance, the one-step law, losses and metrics do not depend on names, order and repetition.

Counts and fractions of counts agree bitwise. Sums of floating-point numbers in another order agree up to
n ε times the sum of their absolute values, for up to n = 36 terms.
"""

import jax
import numpy as np
import pytest
from invariances.problems import (
    changed_problems,
    check,
    classes_and_examples,
    corpus,
    examples,
    problems,
    twice,
    with_unused_token,
)

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.base.probe import ProbeContext

SUM = 36 * 2.0**-52
# Losses, outputs and gradients are sums of terms below 10, and a metric combines tens of them.
METRIC = 1e3 * SUM
COUNTS = ("token_counts", "posterior_difference")


@jax.jit
def importance(data):
    """Compute measures of token importance."""
    names = (*COUNTS, "average_signed_frequency")
    return {name: getattr(ja.data, name)(data) for name in names}


@jax.jit
def metrics(params, data):
    """Compute the standard metrics, and the deviation from the one-step law after one step on E."""
    phase = ja.dynamics.OneStep(name="embed", step_size=1.0)
    task = Task(
        ja.models.OneLayer(dim=4),
        ja.losses.classification,
        ja.data.Splits(data, ja.data.token_statistics(data), data),
    )
    context = ProbeContext(params, task, phase)
    step = [probe for probe in ja.Probes(min_count=2, bins=4).at_steps if probe.from_step == 0]
    found = {name: x for probe in step for name, x in probe.measure(context).items()}
    found["gradient_norm"] = jax.numpy.exp(found.pop("log_gradient_norm"))
    moved = ja.dynamics.one_step(params, data, step_size=1.0)
    change = (moved.E - params.E) @ params.v
    return found | {"one_step_error": ja.theory.one_step_error(change, data, 1.0)}


def measure(problem):
    """Compute the metrics of the one-layer model."""
    params = ja.models.one_layer.Params(E=problem.E, p=problem.p, v=problem.v)
    return metrics(jax.tree.map(jax.numpy.asarray, params), corpus(problem))


@pytest.mark.parametrize("classes", [2, 3])
@examples(20, 400)
def test_token_importance_moves_with_tokens_and_classes(classes, examples, x64):
    def holds(changes):
        original, *others = changes.values()
        expected = importance(corpus(original.problem))
        for change in others:
            found = {name: change.of_tokens(x) for name, x in importance(corpus(change.problem)).items()}
            signed = {name: change.of_classes(x) for name, x in found.items() if name != "token_counts"}
            for name in COUNTS:
                np.testing.assert_array_equal((found | signed)[name], expected[name])
            name = "average_signed_frequency"
            np.testing.assert_allclose(signed[name], expected[name], rtol=0, atol=SUM)

    check(holds, changed_problems(classes), examples=examples)


@classes_and_examples(20, 400)
def test_standard_metrics_do_not_depend_on_names_signs_and_rotations(classes, examples, x64):
    def holds(changes):
        original, *others = changes.values()
        expected = measure(original.problem)
        for change in others:
            # With the sign of labels turned, E·p meets the opposite order of tokens. Bins are mirrored, and
            # a token on an edge is in the other bin.
            turned = classes == 2 and change.classes is not None
            kept = [name for name in expected if not (turned and ("Ep_signed" in name or "_bin" in name))]
            found = measure(change.problem)
            for name in kept:
                np.testing.assert_allclose(
                    found[name], expected[name], rtol=METRIC, atol=METRIC, err_msg=name
                )

    check(holds, changed_problems(classes), examples=examples)


@examples(10, 300)
def test_repeated_sequences_and_unused_tokens_change_no_metric(examples, x64):
    def holds(problem):
        # One problem with both changes, so that the metrics compile once.
        changed = with_unused_token(twice(problem))
        counts, found = importance(corpus(problem)), importance(corpus(changed))
        np.testing.assert_array_equal(found["token_counts"][1:], 2 * counts["token_counts"])
        for name in set(counts) - {"token_counts"}:
            np.testing.assert_array_equal(found[name][1:], counts[name])
        expected, found = measure(problem), measure(changed)
        for name in ("loss", "train_accuracy", "gradient_norm", "one_step_error", "selected_tokens"):
            np.testing.assert_allclose(found[name], expected[name], rtol=METRIC, atol=METRIC)

    check(holds, problems(), examples=examples)
