"""Built-in and custom classes derive from the same base classes."""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

import jaxattn as ja
from jaxattn import base
from jaxattn.base.model import HasTokenScores
from jaxattn.base.probe import check_conclusions
from jaxattn.lab.study.concepts import CONCEPTS, table
from jaxattn.lab.study.registry import _check_class, _check_settings

PACKAGE = Path(ja.__file__).parent
EXTENDING = Path(__file__).parents[1] / "docs" / "howto" / "extending.md"
# Modules that use hasattr, or getattr with a default, on objects of other packages.
FOREIGN = {
    "jaxattn/lab/cli/console.py": "exceptions of any kind",
    "jaxattn/dynamics/descents/descent_phase.py": "functions of optax and of users",
    "jaxattn/dynamics/descents/optimizers.py": "functions of optax and of users",
    "jaxattn/lab/engine/devices.py": "arrays and shapes of JAX",
    "jaxattn/lab/engine/progress.py": "IPython, which need not be there",
    "jaxattn/base/from_function.py": "declarations of functions, and the bases of their classes",
    "jaxattn/core/errors.py": "whatever a user's code returns",
    "jaxattn/lab/figures/draw.py": "figure functions and numbers of NumPy",
    "jaxattn/lab/results/params.py": "leaves of a checkpoint",
    "jaxattn/lab/storage/checkpoints.py": "exceptions of the operating system",
    "jaxattn/core/backend.py": "options that versions of JAX have or lack",
    "jaxattn/lab/study/source_imports.py": "modules of users",
    "jaxattn/lab/study/code_hash.py": "functions, classes, modules and values of a user's code",
    "jaxattn/lab/study/dry_run.py": "states and values that a user's code returns",
    "jaxattn/core/settings.py": "annotations",
    "jaxattn/core/spec.py": "arrays of NumPy",
    "jaxattn/lab/study/output_checks.py": "values that a user's code returns",
    "jaxattn/lab/study/registry.py": "what Python gives: functions, classes, arrays",
    "jaxattn/lab/study/import_paths.py": "modules and their contents",
    "jaxattn/core/pytrees.py": "parameters: any pytree with names",
    "jaxattn/lab/engine/executor.py": "executors of other packages",
    "jaxattn/core/fractions.py": "arrays of NumPy and JAX, and numbers",
    "jaxattn/theory/check_certificate.py": "flags of the operating system",
    "jaxattn/lab/study/randomness.py": "phases of custom code",
}


def guesses(path):
    """Count hasattr, and getattr with a default."""
    calls = [x for x in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(x, ast.Call)]
    named = [(x.func.id, len(x.args)) for x in calls if isinstance(x.func, ast.Name)]
    return sum(name == "hasattr" or (name == "getattr" and size == 3) for name, size in named)


def test_hasattr_and_getattr_are_used_only_for_foreign_objects():
    found = {
        path.relative_to(PACKAGE.parent).as_posix(): number
        for path in PACKAGE.rglob("*.py")
        if (number := guesses(path))
    }
    assert found.keys() <= FOREIGN.keys()


@pytest.mark.parametrize("concept", CONCEPTS, ids=lambda concept: concept.name)
def test_built_in_classes_follow_the_rules_for_custom_classes(concept):
    for kind, target in concept.known.items():
        _check_class(concept, target, kind)
        _check_settings(target, kind)


@pytest.mark.parametrize("concept", CONCEPTS, ids=lambda concept: concept.name)
def test_required_methods_of_base_classes_raise_not_implemented(concept):
    for of, names in concept.bases.items():
        for name in names:
            written = vars(of)[name]
            source = inspect.getsource(written.fget if isinstance(written, property) else written)
            assert "raise NotImplementedError" in source


def test_subclasses_are_immutable_structs_without_a_decorator():
    class Mine(ja.Model):
        width: int = 3

    assert Mine.__struct_fields__ == ("width",)
    with pytest.raises(AttributeError, match="immutable"):
        Mine().width = 4
    assert (Mine().dim, Mine().token_rows) == (None, ())
    assert not isinstance(Mine(), HasTokenScores)
    assert isinstance(ja.models.TwoLayer(dim=3), HasTokenScores)


def test_table_in_the_docs_is_generated_from_the_base_classes():
    assert table() in EXTENDING.read_text(encoding="utf-8")
    for concept in CONCEPTS:
        for of, names in concept.bases.items():
            calls = [call.partition("(")[0] for call in concept.classes[of.__name__]]
            assert set(names) <= set(calls)


def test_every_base_class_is_exported():
    exported = [of for concept in CONCEPTS for of in concept.bases]
    assert [of for of in exported if getattr(ja, of.__name__) is not of] == []
    assert base.Phase is ja.Phase


class Concludes(ja.PhaseProbe):
    metrics = ("turned", "ended")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"turned": np.zeros((6, 3))},
            r"Concludes.conclude returns dict; return two dictionaries, with arrays of shape \(S, k\)",
        ),
        (
            ({"turned": np.zeros(6)}, {}),
            r"Concludes.conclude returns 'turned' with shape \(6,\); expected \(6, 3\)",
        ),
        (
            ({}, {"ended": np.zeros(99)}),
            r"Concludes.conclude returns 'ended' with shape \(99,\); expected \(6,\)",
        ),
        (
            ({}, {"loss": np.zeros(6)}),
            r"Concludes.conclude returns the metric 'loss', which is not declared in `metrics`; add it",
        ),
    ],
)
def test_conclude_must_return_one_row_per_seed(found, message):
    with pytest.raises(ja.InputError, match=message):
        check_conclusions(Concludes(), found, seeds=6, points=3)
    fine = {"turned": np.zeros((6, 3))}, {"ended": [0.0] * 6}
    assert check_conclusions(Concludes(), fine, 6, 3)[1]["ended"].shape == (6,)
