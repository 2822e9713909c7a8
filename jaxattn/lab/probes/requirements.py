"""Functions that check a probe's requirements; each returns the unmet requirement, or None."""

from collections.abc import Sequence

from jaxattn.base import Phase, Task
from jaxattn.base.model import HasTokenScores
from jaxattn.data.corpus import Corpus
from jaxattn.losses import is_logistic
from jaxattn.models.one_layer import is_one_layer
from jaxattn.models.token_model import TokenModel


def require_bags(task: Task) -> str | None:
    """Return the unmet requirement, or None if the data are bags of tokens with class labels."""
    return None if isinstance(task.data.train, Corpus) else "requires bags of tokens with classes"


def require_token_scores(task: Task) -> str | None:
    """Return the unmet requirement, or None.

    The requirements are bags of tokens, and a model that defines token scores and values.
    """
    if not isinstance(task.model, HasTokenScores):
        return "requires a model with scores_and_values"
    return require_bags(task)


def require_token_attention(task: Task) -> str | None:
    """Return the unmet requirement, or None if attention is a softmax over the token scores in a bag."""
    return require_bags(task) if isinstance(task.model, TokenModel) else "requires a ja.TokenModel"


def require_one_layer_model(task: Task, phase: Phase, train: Sequence[str]) -> str | None:
    """Return the unmet requirement, or None.

    The requirements are the one-layer model, the logistic loss, bags of tokens, and a phase that trains
    exactly the parameters in `train`.
    """
    if not is_one_layer(task.model):
        return "requires the one-layer model"
    if not is_logistic(task.loss):
        return "requires the logistic loss"
    if set(phase.train) != set(train):
        return f"requires a phase that trains {' and '.join(train)} alone"
    return require_bags(task)
