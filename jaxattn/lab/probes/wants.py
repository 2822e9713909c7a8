"""What probes want of a phase's data and model: why one does not apply, in words."""

from collections.abc import Sequence

from jaxattn.base import Phase, Task
from jaxattn.data.corpus import Corpus


def wants_bags(task: Task) -> str | None:
    """Say that something wants bags of tokens with a class; None if the data are."""
    return None if isinstance(task.data.train, Corpus) else "wants bags of tokens with classes"


def wants_scores(task: Task) -> str | None:
    """Say that something wants bags, and a model with scores and values of their tokens."""
    if not task.model.has_scores:
        return "wants a model with scores_and_values"
    return wants_bags(task)


def wants_attention(task: Task) -> str | None:
    """Say that something wants attention that is softmax over scores of the tokens of bags."""
    if not task.model.attends_to_tokens:
        return "wants a model with attends_to_tokens = True"
    return wants_scores(task)


def wants_one_layer(task: Task, phase: Phase, train: Sequence[str]) -> str | None:
    """Say that something wants the one-layer model, the logistic loss, and a phase that moves `train`."""
    if not task.model.is_one_layer:
        return "wants the one-layer model"
    if not task.loss.is_logistic:
        return "wants the logistic loss"
    if set(phase.train) != set(train):
        return f"wants a phase that moves {' and '.join(train)} alone"
    return wants_bags(task)
