"""What metrics and models are, in one sentence or formula, for reports and for the documentation."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

_ACCURACY = "fraction of {} examples whose prediction is the label; ties count as wrong"
_SELECTED = "a sequence selects the token with the highest score"

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "loss": "mean loss over the training examples",
        "test_loss": "mean loss over the test examples",
        "validation_loss": "mean loss over the validation examples",
        "p_norm": "Euclidean norm ‖p‖ of the query",
        "log_gradient_norm": (
            "logarithm of the norm of the loss gradient with respect to the trained parameters"
        ),
        "evaluations": "number of gradient evaluations in the phase so far",
        "accuracy": _ACCURACY.format("the"),
        "train_accuracy": _ACCURACY.format("training"),
        "test_accuracy": _ACCURACY.format("test"),
        "validation_accuracy": _ACCURACY.format("validation"),
        "test_accuracy_best_on_test": (
            "best test accuracy so far; biased upwards, because the test examples choose the step"
        ),
        "test_accuracy_best_on_validation": (
            "test accuracy at the step with the best validation accuracy so far"
        ),
        "correlation_Ev_alpha": "correlation of E_s·v and the average signed frequency α_s over tokens",
        "one_step_error": (
            "largest |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0 over tokens s, with E before (0) and after (1) the "
            "step of size η0"
        ),
        "embedding_error": (
            "largest ‖E_s¹ - E_s⁰ - (η0/2) α_s v‖ / η0 over tokens s, with E before (0) and after (1) the "
            "step of size η0"
        ),
        "important_mass": "attention weight on important tokens, averaged over sequences",
        "important_selected": f"fraction of sequences that select an important token; {_SELECTED}",
        "important_tied": "fraction of sequences in which an important token ties for the highest score",
        "selected_tokens": (
            "number of tokens that share the highest score of their sequence, averaged over sequences"
        ),
        "head_mass": "attention weight of each head on important tokens, averaged over sequences",
        "head_selected": "fraction of sequences in which each head selects an important token",
        "any_head_selected": "fraction of sequences in which some head selects an important token",
        "all_heads_selected": "fraction of sequences in which all heads select an important token",
        "relevant_selected": f"fraction of sequences that select a relevant token; {_SELECTED}",
        "only_relevant_selected": (
            "fraction of sequences in which the tokens within `nats` of the highest score are the "
            "relevant ones and no others"
        ),
        "relevant_tied": "fraction of sequences in which a relevant token ties for the highest score",
        "relevant_margin": (
            "smallest difference (E_r - E_s)·p/‖p‖ between a relevant token r and another token s of a "
            "sequence"
        ),
        "attention_entropy": "entropy of the attention weights, averaged over sequences, in nats",
        "attended_tokens": (
            "exponential of the mean attention entropy: the effective number of attended tokens"
        ),
        "largest_attention": "largest attention weight of each query, averaged over the training data",
        "attended_positions": (
            "exponential of the attention entropy of each query: its effective number of positions"
        ),
        "selects_one": "fraction of queries whose largest attention weight is at least `above`",
        "sharpness": (
            "largest eigenvalue of the Hessian of the training loss with respect to the trained parameters"
        ),
        "conservation_drift": (
            "‖Q - Q_0‖/‖Q_0‖ for the conserved quantity Q = EᵀE - Σ_h p_h p_hᵀ - Σ_k v_k v_kᵀ"
        ),
        "one_minus_cosine": (
            "1 - cos(p, p_mm), where p_mm is the max-margin direction of the tokens selected at the end "
            "of the phase"
        ),
        "margin_ratio": "margin of p divided by the largest margin",
        "margin_shortfall": "1 - margin of p divided by the largest margin",
        "certified_distance": (
            "upper bound on 1 - cos between p and the exact max-margin direction, from the duality gap"
        ),
        "feasible": "1 if some direction separates the selected tokens from the others, 0 otherwise",
        "max_margin": "largest margin of any direction",
        "duality_gap": "duality gap of the max-margin problem, divided by its optimal value",
        "primal_residual": "largest violation of a margin constraint",
        "support_pairs": "number of constraints with a positive multiplier in the max-margin problem",
        "relaxed_one_minus_cosine": "1 - cos(p, p_relax), where p_relax is the relaxed max-margin direction",
        "unrelaxed_one_minus_cosine": "1 - cos(p, p_mm), where p_mm is the max-margin direction",
        "head_one_minus_cosine": (
            "1 - cos(v, v_mm), where v_mm is the max-margin direction of v for the selected tokens"
        ),
        "relaxed_certified_distance": "upper bound on 1 - cos between p and the exact p_relax",
        "relaxed_support": "fraction of sequences whose margin under v_mm is the smallest one",
        "limit_one_minus_cosine": "1 - cos(p, p_*), where p_* is the limit direction of gradient flow on p",
        "limit_certified_distance": "upper bound on 1 - cos between p and the exact p_*",
        "limit_feasible": "1 if the limit direction is certified, 0 otherwise",
        "tied_sequences": "fraction of sequences with tied tokens",
        "proven_gap": "relative duality gap, proven in exact arithmetic",
        "accepted": "1 if the independent checker accepts the certificate, 0 otherwise",
        "cover_size": "number of tokens that have the highest score in some sequence, r_eff",
        "cover_share": "fraction of sequences whose highest-scoring token has that role under one label only",
        "cover_error": (
            "largest |E_s·v √r_eff/‖v‖² - y_s| over tokens with the highest score in some sequence"
        ),
        "cover_elsewhere": "largest |E_s·v| √r_eff/‖v‖² over the other tokens",
        "cover_cost": "2√r_eff",
        "cover_attention": "smallest attention weight of any sequence on its token with the highest score",
        "time": "time t of gradient flow",
        "log_time": "logarithm of the time t of gradient flow",
        "log_loss": "logarithm of the training loss",
        "came_to_end": "fraction of paths that reach their stopping condition",
        "arc_length": "length of the path",
        "log_v_norm": "logarithm of ‖v‖",
        "drift": "relative drift of the conserved quantity EᵀE - ppᵀ - vvᵀ",
        "mismatch": "error of dp/dt if v is computed from p",
    }
)

_SPEARMAN = re.compile(r"spearman_(Ev|Ep_signed|Ep_absolute)_(tokens|bins)")
_PAIRS = {
    "Ev": "E_s·v and the posterior difference",
    "Ep_signed": "E_s·p and the posterior difference",
    "Ep_absolute": "E_s·p and the absolute posterior difference",
}
_ACROSS = {
    "tokens": "tokens that occur at least `min_count` times",
    "bins": "the means of equal bins of the posterior difference",
}

# Outputs of the built-in models for a sequence X = (x_1, x_2, ...).
MODELS: Mapping[str, str] = MappingProxyType(
    {
        "one_layer": "f(X) = Σ_i q_i (E_{x_i}·v),   q = softmax(E_X p)",
        "mlp": "f(X) = v·relu(Σ_i q_i E_{x_i} W + b),   q = softmax(E_X p)",
        "two_layer": "f(X) = Σ_i q_i (H_i·v),   q = softmax(H p),   H = Softmax(E_X E_Xᵀ) E_X",
        "two_layer_weights": "f(X) = Σ_i q_i (H_i·v),   q = softmax(H W2 p),   H = Softmax(E_X W1 E_Xᵀ) E_X",
        "key_query": "f(X) = Σ_i q_i (E_{x_i}·v),   q = softmax(E_X W p)",
        "multi_head": "f(X) = (1/H) Σ_h Σ_i q_i^h (E_{x_i}·v_h),   q^h = softmax(E_X p_h)",
    }
)


def definition(metric: str) -> str | None:
    """Return what a built-in metric is, or None for a custom metric.

    An entry of a vector, such as NAME_07, has the definition of NAME.
    """
    if found := _SPEARMAN.fullmatch(metric):
        return f"Spearman correlation of {_PAIRS[found[1]]} across {_ACROSS[found[2]]}"
    names = (metric, re.sub(r"_\d+$", "", metric), metric.removeprefix("relaxed_"))
    return next((DEFINITIONS[name] for name in names if name in DEFINITIONS), None)


def definitions(metrics: Iterable[str], labels: Mapping[str, str]) -> dict[str, str]:
    """Return what each metric is; for a custom metric, its label, or "" if it has none.

    Args:
        metrics: names of the metrics.
        labels: labels that probes and phases of the run declare, keyed by metric.
    """
    return {name: definition(name) or str(labels.get(name, "")) for name in metrics}


def model_formula(tables: Mapping[str, Any]) -> str:
    """Return the outputs of a built-in model as a formula, or "" for a custom model.

    Args:
        tables: the settings of a cell; see `Run.tables`.
    """
    model = tables.get("model") or {}
    formula = MODELS.get(str(model.get("kind")), "")
    return f"{formula} + E_X" if model.get("residual") else formula
