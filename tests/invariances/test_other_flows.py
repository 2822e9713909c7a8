"""Flows of p and v, of E, p and v, and of any model do not depend on names, signs and rotations."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from invariances.problems import changed_problems, check, corpus, examples, problems, stacked, twice

import jaxattn as ja

# 500 times the tolerance per step of `joint_flow`, as for the flow of p.
PATH = 500 * 1e-5


def params_of(changed):
    """Stack the parameters of problems of the same shape."""
    return SimpleNamespace(**{name: np.stack([getattr(x, name) for x in changed]) for name in "Epv"})


@examples(6, 150)
def test_joint_path_does_not_depend_on_names_signs_and_rotations(examples):
    def holds(changes):
        # One after another, and with 16 rows, so that the tests of `joint_flow` share the program.
        one, *others = (
            ja.dynamics.joint_flow(
                SimpleNamespace(E=own.E, p=own.p, v=own.v),
                corpus(own),
                until_norm=100.0,
                max_steps=500,
                points=16,
            )
            for own in (change.problem for change in changes.values())
        )
        for other, change in zip(others, list(changes.values())[1:], strict=True):
            assert one.stop == other.stop
            if one.stop == "norm":
                sign = -1 if change.classes is not None else 1
                np.testing.assert_allclose(change.vectors(other.p[-1]), one.p[-1], rtol=0, atol=PATH * 100)
                np.testing.assert_allclose(sign * change.vectors(other.v[-1]), one.v[-1], rtol=0, atol=PATH)
                np.testing.assert_allclose(other.log_v_norm[-1], one.log_v_norm[-1], rtol=PATH)

    check(holds, changed_problems(), examples=examples)


@examples(6, 100, pytest.mark.more)
def test_full_path_does_not_depend_on_names_signs_and_rotations(examples):
    def holds(changes):
        every = [change.problem for change in changes.values()]
        paths = ja.dynamics.full_flow(
            params_of(every), stacked(every), until_log_loss=-2.0, max_steps=300, points=4, rtol=1e-6
        )
        one, *others = (jax.tree.map(lambda x, k=k: np.asarray(x[k]), paths) for k in range(len(every)))
        for other, change in zip(others, list(changes.values())[1:], strict=True):
            assert one.stop == other.stop
            if one.stop == "loss":
                # The loss is the variable of integration: it is the same at the end.
                np.testing.assert_allclose(other.log_loss[-1], one.log_loss[-1], rtol=0, atol=1e-4)
                p = [x.p[-1] @ x.basis.T for x in (one, other)]
                np.testing.assert_allclose(
                    change.vectors(p[1]), p[0], rtol=0, atol=1e-3 * (1 + np.abs(p[0]).max())
                )

    check(holds, changed_problems(), examples=examples)


@examples(6, 100, pytest.mark.more)
def test_gradient_flow_of_repeated_sequences_is_that_of_the_mean_loss(examples, x64):
    """Until t = 1, rounding errors of 1e-16 grow at most by e^‖∂²L‖; steps of the solver have rtol = 1e-8."""
    run = jax.jit(
        lambda params, data: ja.dynamics.gradient_flow(
            params,
            ja.base.Task(ja.models.OneLayer(dim=4), ja.losses.classification, ja.data.Splits(data)),
            train=("E", "p", "v"),
            until_time=1.0,
            points=3,
        )
    )

    def holds(problem):
        params = ja.models.one_layer.Params(E=problem.E, p=problem.p, v=problem.v)
        params = jax.tree.map(jax.numpy.asarray, params)
        one, other = run(params, corpus(problem)), run(params, corpus(twice(problem)))
        assert one.status == other.status
        for name, x in one.params.items():
            np.testing.assert_allclose(other.params[name], x, rtol=1e-6, atol=1e-6)

    check(holds, problems(), examples=examples)
