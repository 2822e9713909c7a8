"""Metrics as docs/reference/metrics.md defines them, with fractions where equal numbers must tie."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np

from .forward import softmax

ROUNDING = 16 * np.finfo(float).eps


class Tokens:
    """Statistics of tokens: counts, posterior differences as fractions, and average signed frequencies.

    `difference` and `alpha` have one column for two classes, for class 1, and K columns for K > 2 classes.
    """

    def __init__(self, corpus, vocab_size, classes):
        """Count the tokens of the training corpus."""
        self.vocab_size = vocab_size
        self.count, in_class = Counter(), Counter()
        self.alpha = np.zeros((vocab_size, 1 if classes == 2 else classes))
        for x, y in corpus:
            self.count.update(x)
            in_class.update((s, y) for s in x)
            signs = [y] if classes == 2 else [(y == k) - 1 / classes for k in range(classes)]
            for s in x:
                self.alpha[s] += np.array(signs) / len(x) / len(corpus)
        columns = [1] if classes == 2 else range(classes)
        self.seen = sorted(self.count)
        # P(k|s) minus the mean of P(j|s) over the other classes j.
        self.difference = {
            s: [Fraction(classes * in_class[s, k] - n, (classes - 1) * n) for k in columns]
            for s, n in sorted(self.count.items())
        }

    def important(self, size, min_count):
        """Return the important tokens."""
        return {
            s
            for s in self.seen
            if self.count[s] >= min_count and max(map(abs, self.difference[s])) >= exact(size)
        }


def exact(number):
    """Return a setting such as 0.1 as the fraction that its decimal digits mean."""
    return Fraction(str(number))


def spearman(x, y):
    """Return the correlation of ranks, where equal values have their average rank."""
    return pearson(ranks(x), ranks(y))


def ranks(x):
    """Return the ranks 1, 2, ..., where equal values have their average rank."""
    return [Fraction(sum(a < b for a in x) + sum(a <= b for a in x) + 1, 2) for b in x]


def pearson(x, y):
    """Return the correlation; NaN if a variable is constant."""
    x, y = (np.array([float(a) for a in z]) for z in (x, y))
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    return (x @ y) / math.sqrt((x @ x) * (y @ y))


def bin_means(values, differences, bins, low, high):
    """Return the mean value in each bin of the posterior difference. Edges belong to the upper bin."""
    low, high = exact(low), exact(high)
    members = [[] for _ in range(bins)]
    for value, difference in zip(values, differences, strict=True):
        if low <= difference <= high:
            number = min(math.floor((difference - low) / (high - low) * bins), bins - 1)
            members[number].append(value)
    return [float(np.mean(own)) if own else math.nan for own in members]


def importance(tokens, scores, values, bins=20, low=-1.0, high=1.0, min_count=50):
    """Return the metrics of the probe Importance, means over the columns of the posterior difference."""
    columns = range(values.shape[1])
    size = {s: max(map(abs, tokens.difference[s])) for s in tokens.seen}
    found, parts = {}, {}
    frequent = [s for s in tokens.seen if tokens.count[s] >= min_count]
    top = max(-low, high)
    for k in columns:
        signed = {s: tokens.difference[s][k] for s in tokens.seen}
        for name, of_token, against, ends in (
            ("Ev", values[:, k], signed, (low, high)),
            ("Ep_signed", scores, signed, (low, high)),
            ("Ep_absolute", scores, size, (0.0, top)),
        ):
            rank = spearman([of_token[s] for s in frequent], [against[s] for s in frequent])
            parts.setdefault(f"spearman_{name}_tokens", []).append(rank)
            if bins:
                seen = [of_token[s] for s in tokens.seen], [against[s] for s in tokens.seen]
                means = bin_means(*seen, bins, *ends)
                full = [b for b in range(bins) if not math.isnan(means[b])]
                rank = spearman([means[b] for b in full], full)
                parts.setdefault(f"spearman_{name}_bins", []).append(rank)
                for b in range(bins):
                    if name != "Ep_absolute":
                        parts.setdefault(f"{name.removesuffix('_signed')}_bin_{b:02d}", []).append(means[b])
        alpha = [tokens.alpha[s, k] for s in tokens.seen]
        parts.setdefault("correlation_Ev_alpha", []).append(
            pearson([values[s, k] for s in tokens.seen], alpha)
        )
    for name, each in parts.items():
        found[name] = float(np.mean(each))
    return found


def selected(corpus, scores, important):
    """Return the metrics of the probe Selected."""
    mass, chosen, tied, tops = [], [], [], []
    for x, _ in corpus:
        a = scores[x]
        top = {s for s in x if scores[s] == a.max()}
        uniform = top == set(x)
        mass.append(softmax(a)[[s in important for s in x]].sum())
        chosen.append(not uniform and top <= important)
        tied.append(bool(top & important) and (uniform or not top <= important))
        tops.append(len(top))
    found = {"important_mass": mass, "important_selected": chosen, "important_tied": tied}
    means = {name: float(np.mean(each)) if important else math.nan for name, each in found.items()}
    return means | {"selected_tokens": float(np.mean(tops))}


def accuracy(outputs, labels):
    """Return the fraction of right predictions; outputs that are 0 or tie up to rounding errors are wrong."""
    rounded = ROUNDING * max(float(np.abs(f).max()) for f in outputs)
    right = 0
    for f, y in zip(outputs, labels, strict=True):
        lead = y * f[0] if len(f) == 1 else f[y] - np.delete(f, y).max()
        right += bool(lead > rounded)
    return right / len(labels)


def one_step_error(tokens, E0, E1, v, step_size):
    """Return the deviation of E·v from the one-step law per unit of the step size."""
    law = tokens.alpha / (2 if tokens.alpha.shape[1] == 1 else 1)
    return float(np.abs((E1 - E0) @ v / step_size - law).max())


def embedding_error(tokens, E0, E1, v, step_size):
    """Return the deviation of E from the one-step law per unit of the step size."""
    law = tokens.alpha / (2 if tokens.alpha.shape[1] == 1 else 1)
    return float(np.linalg.norm((E1 - E0) / step_size - law @ v.T, axis=1).max())


def attention_entropy(corpus, scores):
    """Return the mean entropy of the attention on tokens, and its exponential."""
    entropies = []
    for x, _ in corpus:
        mass = Counter()
        for s, q in zip(x, softmax(scores[x]), strict=True):
            mass[s] += q
        entropies.append(-sum(q * math.log(q) for q in mass.values() if q > 0))
    entropy = float(np.mean(entropies))
    return {"attention_entropy": entropy, "attended_tokens": math.exp(entropy)}


def cover(corpus, scores, values, v):
    """Return the metrics of the probe Cover for two classes."""
    tops = [max(x, key=lambda s: (scores[s], -s)) for x, _ in corpus]
    labels = {s: {y for top, (_, y) in zip(tops, corpus, strict=True) if top == s} for s in set(tops)}
    clear = [s for s in labels if len(labels[s]) == 1]
    ratio = values * math.sqrt(len(labels)) / (v**2).sum()
    attention = [
        softmax(scores[x])[[s == top for s in x]].sum() for top, (x, _) in zip(tops, corpus, strict=True)
    ]
    return {
        "cover_size": float(len(labels)),
        "cover_share": sum(top in clear for top in tops) / len(tops),
        "cover_error": max((abs(ratio[s] - min(labels[s])) for s in clear), default=math.nan),
        "cover_elsewhere": max((abs(ratio[s]) for s in range(len(ratio)) if s not in labels), default=0.0),
        "cover_cost": 2 * math.sqrt(len(labels)),
        "cover_attention": float(min(attention)),
    }


def norms(params):
    """Return the norms of all parameters."""
    return {f"norm_{name}": float(np.linalg.norm(x)) for name, x in params.items()}
