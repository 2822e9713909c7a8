"""The studies behind the scoreboard, as tables of a sweep file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxattn.api import Study
from jaxattn.data.source import Source
from jaxattn.study import concepts
from jaxattn.study.kinds import describe
from jaxattn.study.namespace import Namespace

Table = dict[str, Any]
# Of all cells together; in coordinates of their span a seed needs some 100 kB.
LANES = 512


@dataclass(frozen=True)
class Plan:
    """What the scoreboard runs.

    Attributes:
        base: sizes where the theory of the flow is checked; 20 of 50 tokens are relevant.
        dim: d there, large.
        step_size: η0 of the one step on E there, large.
        law: sizes of the one-step law; 40 of 100 tokens are relevant.
        law_dims: d at which its error is measured.
        law_classes: K of the multi-class law.
        several: numbers r of relevant tokens per sequence.
        step_sizes: η0 that are not large enough (0 is no step at all), and ones that d is too small for.
        dims: d that are not large enough, and ∞, where E, p and v begin orthonormal.
        until_norm: ‖p‖ that the flow of p alone is followed to.
        joint_until_norm: ‖p‖ that the flow of p and v together is followed to.
    """

    base: Mapping[str, int] = field(
        default_factory=lambda: {"vocab_size": 50, "relevant": 20, "length": 8, "sequences": 200}
    )
    dim: int = 2048
    step_size: float = 200.0
    law: Mapping[str, int] = field(
        default_factory=lambda: {"vocab_size": 100, "relevant": 40, "length": 16, "sequences": 512}
    )
    law_dims: tuple[int, ...] = (64, 256, 1024, 4096)
    law_classes: int = 4
    several: tuple[int, ...] = (2, 3)
    step_sizes: tuple[float, ...] = (0.0, 5.0, 20.0, 50.0, 1000.0, 3000.0)
    dims: tuple[int | str, ...] = (8, 16, 64, 256, "inf")
    until_norm: float = 1e6
    joint_until_norm: float = 1e4


@dataclass(frozen=True)
class TextPlan:
    """How much is run on texts; seeds differ in their parameters only.

    Attributes:
        law_dims: d at which the error of the one-step law is measured.
        law_seeds: most seeds of the one-step law.
        dim: d of the flow.
        step_size: η0 of the one step before it.
        rate: step of the descent that stands for the flow, small enough for IMDB.
        steps: its steps.
        flow_seeds: most seeds of the flow.
    """

    law_dims: tuple[int, ...] = (128, 512, 2048)
    law_seeds: int = 32
    dim: int = 2048
    step_size: float = 5000.0
    rate: float = 0.25
    steps: int = 1200
    flow_seeds: int = 3


def synthetic(plan: Plan, seeds: int) -> dict[str, Study]:
    """Make the studies on synthetic corpora, by name."""
    limit = {"name": "limit", "kind": "exact_flow", "until_norm": plan.until_norm}
    relevant = {"relevant": plan.base["relevant"]}
    probes: Table = {
        "tokens": False,
        "per_decade": 0,
        "own": [
            {"kind": "max_margin_direction", "nats": 10.0},
            {"kind": "relevant_tokens", **relevant},
            "relaxed_direction",
        ],
    }

    def law(kind: str, **data: Any) -> Table:
        return {
            "data": {"kind": kind, **plan.law, **data},
            "phases": [_step(1.0)],
            "probes": {"tokens": False, "own": ["one_step_embeddings"]},
            "axes": {"model.dim": list(plan.law_dims)},
            "chunk": 64,
        }

    def flow(kind: str, last: Table = limit, **data: Any) -> Table:
        return {
            "data": {"kind": kind, **plan.base, **data},
            "phases": [_step(plan.step_size), last],
            "probes": probes,
            "chunk": LANES,
        }

    # Tokens tie where a sequence has no relevant token, or several.
    tied = {"probes": probes | {"own": [*probes["own"], "flow_limit"]}}
    together = {"name": "together", "kind": "joint_flow", "until_norm": plan.joint_until_norm}
    beyond: list[Table] = [{"model.dim": plan.dim, "phases.step.step_size": x} for x in plan.step_sizes]
    beyond += [{"model.dim": x, "phases.step.step_size": plan.step_size} for x in plan.dims]
    several = {"axes": {"data.relevant_per_sequence": list(plan.several)}}
    tables = {
        "law-independent": law("independent"),
        "law-assumption1": law("assumption1"),
        "law-classes": law("independent", num_classes=plan.law_classes),
        "base": flow("assumption1") | {"probes": probes | {"per_decade": 8}},
        "independent": flow("independent") | tied,
        "several": flow("multi_relevant", relevant_per_sequence=plan.several[0]) | tied | several,
        "beyond": flow("assumption1") | {"cells": beyond},
        "joint": flow("assumption1", together),
    }
    common = {"seeds": seeds, "dtype": "float64", "model": {"kind": "one_layer", "dim": plan.dim}}
    return {name: Study.of_tables({"name": name, **common, **own}) for name, own in tables.items()}


def on_texts(source: Source, plan: TextPlan, seeds: int) -> dict[str, Study]:
    """Make the studies on texts, by name."""
    names = Namespace()
    descent = _descent("descent", ["p"], optimizer="sgd", step_size=plan.rate, steps=plan.steps)
    tables: dict[str, Table] = {
        "law-texts": {
            "seeds": min(seeds, plan.law_seeds),
            "phases": [_step(1.0)],
            "probes": {"tokens": False, "own": ["one_step_embeddings"]},
            "axes": {"model.dim": list(plan.law_dims)},
        },
        "flow-texts": {
            "seeds": min(seeds, plan.flow_seeds),
            "phases": [_step(plan.step_size), descent],
            "probes": {"tokens": False, "per_decade": 0, "own": ["alignments"]},
        },
    }
    common = {"data": describe(source, concepts.DATA, names), "model": {"kind": "one_layer", "dim": plan.dim}}
    return {name: Study.of_tables({"name": name, **common, **own}, names) for name, own in tables.items()}


def _step(step_size: float) -> Table:
    return {"name": "step", "kind": "one_step", "step_size": step_size}


def _descent(name: str, train: list[str], **settings: Any) -> Table:
    return {"name": name, "kind": "descent", "train": train, **settings}
