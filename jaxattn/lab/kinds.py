"""All built-in kinds: for every `kind` in a sweep file, the import path of its class or function.

    [data]
    kind = "csv"                       # DATA["csv"] is the class jaxattn.lab.texts.table_files.Csv

A new kind is one more line here. The lists contain import paths, so reading them imports no other module.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Synthetic data, sampled for each seed.
GENERATORS: Mapping[str, str] = MappingProxyType(
    {
        "assumption1": "jaxattn.data.generators:Assumption1",
        "multi_relevant": "jaxattn.data.generators:MultiRelevant",
        "independent": "jaxattn.data.generators:Independent",
        "topics": "jaxattn.data.generators:Topics",
        "xor": "jaxattn.data.generators:Xor",
        "negation": "jaxattn.data.generators:Negation",
    }
)
# Readers of labelled texts.
READERS: Mapping[str, str] = MappingProxyType(
    {
        "tfds": "jaxattn.lab.texts.readers:Tfds",
        "parquet": "jaxattn.lab.texts.table_files:Parquet",
        "csv": "jaxattn.lab.texts.table_files:Csv",
        "jsonl": "jaxattn.lab.texts.table_files:Jsonl",
        "lines": "jaxattn.lab.texts.readers:Lines",
        "folder": "jaxattn.lab.texts.readers:Folder",
    }
)
DATA: Mapping[str, str] = MappingProxyType({**GENERATORS, **READERS})
MODELS: Mapping[str, str] = MappingProxyType(
    {
        "one_layer": "jaxattn.models.one_layer:OneLayer",
        "mlp": "jaxattn.models.mlp:Mlp",
        "two_layer": "jaxattn.models.two_layer:TwoLayer",
        "two_layer_weights": "jaxattn.models.two_layer_weights:TwoLayerWeights",
        "key_query": "jaxattn.models.key_query:KeyQuery",
        "multi_head": "jaxattn.models.multi_head:MultiHead",
    }
)
LOSSES: Mapping[str, str] = MappingProxyType(
    {
        "classification": "jaxattn.losses:Classification",
        "logistic": "jaxattn.losses:Logistic",
        "cross_entropy": "jaxattn.losses:CrossEntropy",
        "exponential": "jaxattn.losses:Exponential",
        "squared": "jaxattn.losses:Squared",
        "hinge": "jaxattn.losses:Hinge",
        "squared_error": "jaxattn.losses:SquaredError",
    }
)
# Initial values of single parameters.
STARTS: Mapping[str, str] = MappingProxyType(
    {
        "zero": "jaxattn.models.starts:Zero",
        "scaled": "jaxattn.models.starts:Scaled",
        "file": "jaxattn.models.starts:FromFile",
    }
)
PHASES: Mapping[str, str] = MappingProxyType(
    {
        "one_step": "jaxattn.dynamics.descents.descent_phase:OneStep",
        "descent": "jaxattn.dynamics.descents.descent_phase:Descent",
        "exact_flow": "jaxattn.dynamics.flows.flow_phase:ExactFlow",
        "joint_flow": "jaxattn.dynamics.flows.flow_phase:JointFlow",
        "full_flow": "jaxattn.dynamics.flows.flow_phase:FullFlow",
        "gradient_flow": "jaxattn.dynamics.flows.gradient_flow:GradientFlow",
        "log_descent": "jaxattn.dynamics.descents.log_descent:LogDescent",
    }
)
# Probes that a study can use in addition to the standard ones.
PROBES: Mapping[str, str] = MappingProxyType(
    {
        "attended": "jaxattn.lab.probes.selection:Attended",
        "attention_entropy": "jaxattn.lab.probes.selection:AttentionEntropy",
        "heads_selected": "jaxattn.lab.probes.selection:HeadsSelected",
        "norms": "jaxattn.lab.probes.parameters:Norms",
        "alignments": "jaxattn.lab.probes.parameters:Alignments",
        "conservation": "jaxattn.lab.probes.parameters:Conservation",
        "sharpness": "jaxattn.lab.probes.parameters:Sharpness",
        "max_margin_direction": "jaxattn.lab.probes.directions:MaxMarginDirection",
        "exact_gap": "jaxattn.lab.probes.exact_gap:ExactGap",
        "one_step_embeddings": "jaxattn.lab.probes.importance:OneStepEmbeddings",
        "relevant_tokens": "jaxattn.lab.probes.selection:RelevantTokens",
        "cover": "jaxattn.lab.probes.selection:Cover",
        "relaxed_direction": "jaxattn.lab.probes.directions:RelaxedDirection",
        "flow_limit": "jaxattn.lab.probes.directions:FlowLimit",
    }
)
# Functions (results, **options) -> RenderedFigure.
FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "against": "jaxattn.lab.figures.against:against",
        "convergence": "jaxattn.lab.figures.scaling:convergence",
        "curves": "jaxattn.lab.figures.curves:curves",
        "diagram": "jaxattn.lab.figures.diagram:diagram",
        "importance": "jaxattn.lab.figures.token_figures:importance",
        "one_step_law": "jaxattn.lab.figures.token_figures:one_step_law",
        "scaling": "jaxattn.lab.figures.scaling:scaling",
        "top_tokens": "jaxattn.lab.figures.token_figures:top_tokens",
    }
)


def load_kind(path: str) -> Any:
    """Return the class or function with an import path `module:name`.

    Example:
        >>> from jaxattn.lab import kinds
        >>> kinds.load_kind(kinds.MODELS["one_layer"]) is ja.models.OneLayer
        True
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def classes(kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the class of each kind in a list, such as `classes(MODELS)`.

    Example:
        >>> from jaxattn.lab import kinds
        >>> kinds.classes(kinds.STARTS)["zero"].__name__
        'Zero'
    """
    return {kind: load_kind(path) for kind, path in kinds.items()}
