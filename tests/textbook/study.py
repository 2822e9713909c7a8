"""A study for one seed of one cell: its phases, and all its metrics at every step.

The settings are a dictionary with the tables of a sweep file. A corpus is a list of pairs (token ids, label).
"""

import math
from fnmatch import fnmatchcase
from functools import partial

import numpy as np

from . import metrics
from .forward import MODELS, scores_and_values
from .losses import loss
from .steps import descent, norm


class Task:
    """A model and a loss on corpora of K classes.

    Attributes:
        kind: the kind of the model.
        model: the model, a function (params, ids) -> outputs and backward pass.
        loss: the table of the loss.
        follows_law: True for the one-layer model with the logistic loss.
    """

    def __init__(self, settings):
        """Read the settings."""
        known = settings["model"] if isinstance(settings["model"], dict) else {"kind": settings["model"]}
        self.kind = known["kind"]
        extra = {"residual": known["residual"]} if "residual" in known else {}
        self.model = lambda params, x: MODELS[self.kind](params, x, **extra)
        of_loss = settings.get("loss", "classification")
        self.loss = {"kind": of_loss} if isinstance(of_loss, str) else of_loss
        logistic = self.loss["kind"] in ("classification", "logistic", "cross_entropy")
        self.follows_law = self.kind == "one_layer" and logistic and not self.loss.get("smoothing")

    def outputs(self, params, corpus):
        """Return the outputs of all sequences."""
        return [self.model(params, x)[0] for x, _ in corpus]

    def mean_loss(self, params, corpus):
        """Return the mean loss."""
        return self.gradient(params, corpus, ())[0]

    def gradient(self, params, corpus, train):
        """Return the mean loss and its gradients."""
        total, gradients = 0.0, {name: np.zeros_like(params[name]) for name in train}
        for x, y in corpus:
            f, backward = self.model(params, x)
            value, d_f = loss(self.loss["kind"], f, y, self.loss.get("smoothing", 0.0))
            total += value / len(corpus)
            if train:
                found = backward(d_f / len(corpus))
                gradients = {name: g + found[name] for name, g in gradients.items()}
        return total, gradients


def simulate(settings, params, splits, batch, steps_of, seen=lambda params: params):
    """Return {(phase, step, metric): value} of one seed.

    Args:
        settings: tables of the cell.
        params: initial parameters; v is (d, C), or (H, d, C) for heads.
        splits: corpora "train", "test" and "validation", which may be missing.
        batch: (index of the phase, step) -> examples in the minibatch of the step.
        steps_of: index of the phase -> steps at which to measure.
        seen: parameters -> the parameters at which gradients are computed.
    """
    task, found = Task(settings), {}
    tokens = metrics.Tokens(splits["train"], len(params["E"]), settings["data"].get("num_classes", 2))
    for index, given in enumerate(settings["phases"]):
        one_step = {"train": ["E"], "steps": 1, "optimizer": "sgd"} if given["kind"] == "one_step" else {}
        phase, start, best = one_step | given, params, {}
        path = path_of(task, phase, start, splits, partial(batch, index), seen)
        for step, (params, evaluations, fit) in enumerate(path):
            if step in steps_of(index):
                one = of_fit(task, splits, params, *fit()) | {"evaluations": float(evaluations)}
                one |= best_so_far(best, one) | of_tokens(settings, task, tokens, splits["train"], params)
                if one_step and step == 1 and task.follows_law:
                    one |= of_step(settings, tokens, start, params, phase["step_size"])
                found |= {(phase["name"], step, name): value for name, value in one.items()}
    return found


def path_of(task, phase, start, splits, batch, seen):
    """Yield the parameters at every step of a phase, the gradient evaluations, and the training loss.

    The loss is a function without arguments that returns the loss of all training data and its gradients.
    """
    names, size, train = trained(phase["train"], start), phase.get("batch_size"), splits["train"]

    def gradient(params, batch):
        return task.gradient(seen(params), train if batch is None else [train[i] for i in batch], names)

    def batches(k):
        return None if size is None else batch(k)

    def validation_loss(params):
        return task.mean_loss(params, splits["validation"])

    for params, evaluations in descent(phase, start, gradient, batches, validation_loss):
        yield params, evaluations, partial(gradient, params, None)


def trained(patterns, params):
    """Return the names of the trained parameters; a pattern after "!" excludes names."""
    own = [name for name in params if any(fnmatchcase(name, x) for x in patterns if x[0] != "!")]
    return [name for name in own if not any(fnmatchcase(name, x[1:]) for x in patterns if x[0] == "!")]


def of_fit(task, splits, params, value, gradients):
    """Return losses, accuracies, the logarithm of the gradient norm, and the norm of p."""
    size = norm(gradients)
    found = {"loss": value, "log_gradient_norm": math.log(size) if size else -math.inf}
    found["p_norm"] = float(np.linalg.norm(params["p"]))
    for name, corpus in splits.items():
        labels = [y for _, y in corpus]
        found[f"{name}_accuracy"] = metrics.accuracy(task.outputs(params, corpus), labels)
        if name != "train":
            found[f"{name}_loss"] = task.mean_loss(params, corpus)
    return found


def best_so_far(best, found):
    """Return the test accuracies at the first best step so far; `best` keeps (accuracy, test accuracy)."""
    for name in {"test", "validation"}:
        now = found.get(f"{name}_accuracy"), found.get("test_accuracy")
        if None not in now and (name not in best or now[0] > best[name][0]):
            best[name] = now
    return {f"test_accuracy_best_on_{name}": test for name, (_, test) in best.items()}


def of_tokens(settings, task, tokens, corpus, params):
    """Return the metrics of attention on tokens and of their importance."""
    probes = settings.get("probes", {})
    scores, values = scores_and_values(task.kind, params)
    chosen = {name: probes[name] for name in ("bins", "low", "high", "min_count") if name in probes}
    found = metrics.importance(tokens, scores, values, **chosen)
    important = tokens.important(probes.get("important", 0.5), probes.get("min_count", 50))
    if task.kind in ("one_layer", "key_query", "mlp"):
        found |= metrics.selected(corpus, scores, important)
    own = probes.get("own", [])
    if "norms" in own:
        found |= metrics.norms(params)
    if "attention_entropy" in own:
        found |= metrics.attention_entropy(corpus, scores)
    if "cover" in own:
        found |= metrics.cover(corpus, scores, values[:, 0], params["v"])
    return found


def of_step(settings, tokens, before, after, step_size):
    """Return the deviations from the one-step law."""
    of_law = tokens, before["E"], after["E"], before["v"], step_size
    found = {"one_step_error": metrics.one_step_error(*of_law)}
    if "one_step_embeddings" in settings.get("probes", {}).get("own", []):
        found["embedding_error"] = metrics.embedding_error(*of_law)
    return found
