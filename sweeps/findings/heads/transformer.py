"""Inputs, projections and attention weights of transformer layers in Hugging Face format.

PyTorch and transformers are imported on first use. Nothing is downloaded, and no code from a model's folder
is run: weights are read only from safetensors files.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import jaxattn as ja
from jaxattn.lab.results.correlations import Floats

Position = Literal["first", "last"] | int
# Names of the query and key projections; a single name denotes a fused projection.
_PROJECTIONS: tuple[tuple[str, ...], ...] = (
    ("query", "key"),
    ("q_lin", "k_lin"),
    ("q_proj", "k_proj"),
    ("c_attn",),
    ("query_key_value",),
)
# Maximum difference between the model's attention weights, in float32, and those recomputed from W_Q and W_K.
_AGREES = 1e-3
_BATCH = 16
# Nothing is downloaded, and no code from a folder is run.
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


class TokenisedTexts(NamedTuple):
    """Tokenised texts, padded on the right, and the query position at which attention is measured.

    Attributes:
        ids: (n, T) int; token ids.
        present: (n, T) bool; False for padding.
        position: (n,) int; query position in each sequence.
        special: (n, T) bool; True for special tokens and for tokens without a letter or digit.
        tokens: (n, T) str; the tokens.
    """

    ids: NDArray[np.int64]
    present: NDArray[np.bool_]
    position: NDArray[np.int64]
    special: NDArray[np.bool_]
    tokens: NDArray[np.str_]


class Layer(NamedTuple):
    """Everything that determines the attention scores in one layer at the query position.

    The score of token t for head h is keyᵀ (W_Q z + b_Q) / √c, where c is the head dimension and z is the
    input at the query position. Rotary embeddings are applied only to the keys, which are rotated back to the
    query position.

    Attributes:
        inputs: (n, T, d); x, the inputs to the projections.
        visible: (n, T) bool; True for tokens that the query position attends to.
        query: (n, d); z, the inputs at the query position.
        W_Q: (H, c, d); the query projection for each head.
        b_Q: (H, c), or None if the projection has no bias.
        W_K: (H, c, d); the key projection for each head, repeated if multiple heads share it.
        rotary: cos and sin, (T, r) each, for the first r ≤ c components; None for absolute positions.
        position: (n,) int; the query position.
    """

    inputs: Floats
    visible: NDArray[np.bool_]
    query: Floats
    W_Q: Floats
    b_Q: Floats | None
    W_K: Floats
    rotary: tuple[Floats, Floats] | None
    position: NDArray[np.int64]

    @property
    def num_heads(self) -> int:
        """Number of heads H."""
        return len(self.W_Q)

    def query_features(self) -> Floats:
        """Return z as an (n, d) array.

        If the query projection has a bias, return (z, 1) as an (n, d + 1) array.
        """
        return self.with_bias(self.query)

    def with_bias(self, z: Floats) -> Floats:
        """Append a component 1 to the last axis of the inputs if the query projection has a bias."""
        return z if self.b_Q is None else np.concatenate([z, np.ones((*z.shape[:-1], 1))], axis=-1)

    def query_matrix(self, head: int) -> Floats:
        """Return W_Q / √c of a head as a (c, d) array.

        If the query projection has a bias, return (W_Q, b_Q) / √c as a (c, d + 1) array.
        """
        W = self.W_Q[head]
        W = W if self.b_Q is None else np.concatenate([W, self.b_Q[head][:, None]], axis=1)
        return W / np.sqrt(len(W))

    def keys(self, head: int) -> Floats:
        """Return the keys of a head as an (n, T, c) array, rotated to the frame of the query position.

        Without rotary embeddings, the key bias is omitted, because it shifts all scores by the same amount.
        """
        keys = self.inputs @ self.W_K[head].T
        if self.rotary is None:
            return keys
        cos, sin = self.rotary
        turned = _rotate(keys, cos, sin)
        return _rotate(turned, cos[self.position][:, None], -sin[self.position][:, None])

    def scores(self, head: int, keys: Floats | None = None, query: Floats | None = None) -> Floats:
        """Return the scores of a head as an (n, T) array, with -inf for tokens that are not visible.

        Args:
            head: index of the head.
            keys: (n, T, c); computed if omitted.
            query: (n, c); projected queries; defaults to the queries of the layer.
        """
        keys = self.keys(head) if keys is None else keys
        query = self.query_features() @ self.query_matrix(head).T if query is None else query
        return np.where(self.visible, np.einsum("ntc,nc->nt", keys, query), -np.inf)


def _rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Apply rotary embeddings: rotate the components j and j + r/2, for j < r/2, by the given angles.

    Only the first r components are rotated, where r is the size of the last axis of `cos`.
    """
    r = cos.shape[-1]
    turned, rest = x[..., :r], x[..., r:]
    half = np.concatenate([-turned[..., r // 2 :], turned[..., : r // 2]], axis=-1)
    return np.concatenate([turned * cos + half * sin, rest], axis=-1)


class Transformer:
    """Transformer loaded from a folder, in float32 on the CPU.

    Attributes:
        folder: the folder.
        decoder: True if attention is causal.
        num_layers: number of layers.
        num_heads: number of query heads per layer.
    """

    def __init__(self, folder: str | Path, *, untrained_seed: int | None = None) -> None:
        """Load the model and its tokenizer.

        Args:
            folder: a folder with config.json, weights and a tokenizer.
            untrained_seed: seed for random weights of the same shapes, used instead of the trained weights.

        Raises:
            InputError: transformers or PyTorch is not installed, the folder does not contain a model that
                transformers can load, its tokenizer is missing, or its weights contain NaN or inf.
        """
        self.folder = Path(folder)
        self._model, self.tokenizer = _load(self.folder, untrained_seed)
        config = self._model.config
        if getattr(config, "is_encoder_decoder", False):
            raise ja.InputError(
                f"{folder}: encoder-decoder models are not supported; "
                "use an encoder-only or decoder-only model"
            )
        self._attentions = _find_attentions(self._model, self.folder)
        self.num_layers, self.num_heads = len(self._attentions), int(config.num_attention_heads)
        self.decoder = bool(_is_causal(self._model, self._attentions[0][0]))

    def tokenize(self, texts: Sequence[str], length: int, position: Position) -> TokenisedTexts:
        """Tokenise texts, truncated to `length` tokens.

        Raises:
            InputError: there are no texts, or a text is too short for the query position.
        """
        if not texts:
            raise ja.InputError("texts: empty; expected at least one text")
        ids = [self.tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in texts]
        sizes = np.array([len(x) for x in ids])
        # An empty text has no token at position -1, so it is also too short.
        at = position if isinstance(position, int) else {"first": 0, "last": -1}[position]
        short = np.flatnonzero(sizes <= (at if at >= 0 else -at - 1))
        if len(short):
            raise ja.InputError(
                f"texts: no token at position {position} in {len(short)} texts out of {len(ids)}, "
                f"for example in text {short[0] + 1}; remove short texts or choose another position"
            )
        width = int(sizes.max())
        padded = np.zeros((len(ids), width), np.int64)
        for row, x in zip(padded, ids, strict=True):
            row[: len(x)] = x
        present = np.arange(width) < sizes[:, None]
        tokens = np.array([self.tokenizer.convert_ids_to_tokens(list(row)) for row in padded], object)
        special = set(self.tokenizer.all_special_ids)
        plain = np.vectorize(lambda token: any(x.isalnum() for x in str(token)))(tokens)
        special_ids = np.isin(padded, list(special)) if special else np.zeros_like(present)
        return TokenisedTexts(
            padded, present, np.where(at >= 0, at, sizes + at), special_ids | ~plain, tokens.astype(str)
        )

    def layer(self, number: int, texts: TokenisedTexts) -> Layer:
        """Run the model and return everything that determines the attention scores in one layer.

        Raises:
            InputError: the model's attention weights differ from softmax(xᵀ W_Kᵀ W_Q z / √c), so its scores
                are not linear in W_Q.
        """
        attention, names = self._attentions[number]
        inputs, weights, rotary = self._record(attention, names, texts)
        layer = _assemble(attention, names, self._model.config, inputs, rotary, texts, self.decoder)
        _check(layer, weights, f"{self.folder}: layer {number} ({type(attention).__name__})")
        return layer

    def _record(
        self, attention: Any, names: tuple[str, ...], texts: TokenisedTexts
    ) -> tuple[Floats, Floats, tuple[Floats, Floats] | None]:
        """Return the inputs, the attention weights at the query position, and cos and sin.

        The inputs have shape (n, T, d), and the weights have shape (n, H, T). The last value is the pair of
        (T, r) arrays cos and sin of the rotary embeddings, or None if the model has no rotary embeddings.
        """
        import torch

        found: dict[str, list[Any]] = {"inputs": [], "weights": [], "rotary": []}
        hooks = [
            getattr(attention, names[0]).register_forward_pre_hook(
                lambda _, args: found["inputs"].append(args[0].double().numpy())
            ),
            attention.register_forward_hook(lambda _, __, out: found["weights"].append(_weights(out))),
        ]
        for module in self._model.modules():
            if type(module).__name__.endswith("RotaryEmbedding"):
                hooks.append(module.register_forward_hook(lambda _, __, out: found["rotary"].append(out)))
        try:
            with torch.inference_mode():
                for first in range(0, len(texts.ids), _BATCH):
                    rows = slice(first, first + _BATCH)
                    self._model(
                        input_ids=torch.from_numpy(texts.ids[rows]),
                        attention_mask=torch.from_numpy(texts.present[rows].astype(np.int64)),
                        use_cache=False,
                    )
        finally:
            for hook in hooks:
                hook.remove()
        at = [texts.position[i : i + _BATCH] for i in range(0, len(texts.ids), _BATCH)]
        weights = [
            np.zeros((0, 0, 0)) if w is None else w[np.arange(len(p)), :, p].double().numpy()
            for w, p in zip(found["weights"], at, strict=True)
        ]
        rotary = None
        if found["rotary"]:
            cos, sin = found["rotary"][0]
            rotary = (cos[0].double().numpy(), sin[0].double().numpy())
        return np.concatenate(found["inputs"]), np.concatenate(weights), rotary


def _load(folder: Path, untrained_seed: int | None) -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ja.InputError(
            f'{error.name} is not installed; run pip install "jaxattn[transformers]"'
        ) from None
    if not (folder / "config.json").is_file():
        raise ja.InputError(f"{folder}: no config.json; expected a folder in Hugging Face format")
    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
            # Only the "eager" implementation returns attention weights.
            same = {"attn_implementation": "eager", "dtype": torch.float32}
            if untrained_seed is None:
                model = transformers.AutoModel.from_pretrained(
                    folder, config=config, use_safetensors=True, **_LOCAL, **same
                )
            else:
                torch.manual_seed(untrained_seed)
                model = transformers.AutoModel.from_config(config, trust_remote_code=False, **same)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise ja.InputError(
                f"{folder}: transformers cannot load this model ({_first_line(error)})"
            ) from None
        # Without tokenizer files, transformers creates a tokenizer with an empty vocabulary.
        if not any(x in file.name for file in folder.iterdir() for x in ("tokenizer.", "vocab.", "spiece")):
            raise ja.InputError(f"{folder}: tokenizer missing; save the tokenizer with the model")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_LOCAL)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
            reason = _first_line(error)
            raise ja.InputError(
                f"{folder}: cannot load the tokenizer ({reason}); save it with the model"
            ) from None
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ja.InputError(f"{folder}: {name} contains NaN or inf; use an earlier checkpoint")
    return model.eval(), tokenizer


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


def _find_attentions(model: Any, folder: Path) -> list[tuple[Any, tuple[str, ...]]]:
    found: list[tuple[Any, tuple[str, ...]]] = [
        (module, names)
        for module in model.modules()
        for names in _PROJECTIONS
        if all(hasattr(getattr(module, name, None), "weight") for name in names)
    ]
    if not found:
        expected = ", ".join("+".join(names) for names in _PROJECTIONS)
        raise ja.InputError(
            f"{folder}: {type(model).__name__} has no supported attention layers "
            f"(expected projections {expected})"
        )
    return found


def _is_causal(model: Any, attention: Any) -> bool:
    if hasattr(attention, "is_causal"):
        return bool(attention.is_causal)
    return bool(getattr(model.config, "is_decoder", False))


def _weights(output: Any) -> Any:
    """Return the (batch, H, T, T) attention weights in the output of a module, or None if there are none."""
    parts = output if isinstance(output, tuple) else (output,)
    return next((x for x in parts if getattr(x, "ndim", 0) == 4 and x.shape[2] == x.shape[3]), None)


def _assemble(
    attention: Any,
    names: tuple[str, ...],
    config: Any,
    inputs: Floats,
    rotary: tuple[Floats, Floats] | None,
    texts: TokenisedTexts,
    decoder: bool,
) -> Layer:
    heads = int(config.num_attention_heads)
    (W_Q, b_Q), (W_K, _) = _projections(attention, names, heads)
    size = len(W_Q) // heads
    shared = max(1, heads * size // len(W_K))
    position = texts.position
    visible = texts.present
    if decoder:
        visible = visible & (np.arange(visible.shape[1]) <= position[:, None])
    return Layer(
        inputs=inputs,
        visible=visible,
        query=inputs[np.arange(len(inputs)), position],
        W_Q=W_Q.reshape(heads, size, -1),
        b_Q=None if b_Q is None else b_Q.reshape(heads, size),
        W_K=np.repeat(W_K.reshape(-1, size, W_K.shape[1]), shared, axis=0),
        rotary=rotary,
        position=position,
    )


_Projection = tuple[Floats, Floats | None]


def _projections(attention: Any, names: tuple[str, ...], heads: int) -> tuple[_Projection, _Projection]:
    """Return the weights, with shape (H·c, d), and the biases of the query and key projections."""

    def numbers(module: Any) -> _Projection:
        bias = getattr(module, "bias", None)
        return (
            module.weight.detach().double().numpy(),
            None if bias is None else bias.detach().double().numpy(),
        )

    weight, bias = numbers(getattr(attention, names[0]))
    if len(names) == 2:
        return (weight, bias), numbers(getattr(attention, names[1]))
    if names == ("c_attn",):  # three blocks, stored as (d, 3 d)
        parts = np.split(weight.T, 3)
        biases = [None] * 3 if bias is None else np.split(bias, 3)
        return (parts[0], biases[0]), (parts[1], biases[1])
    # In a fused matrix, the query, key and value weights of each head are adjacent.
    by_head = weight.reshape(heads, 3, -1, weight.shape[1])
    of_bias = None if bias is None else bias.reshape(heads, 3, -1)
    query, key = (
        (by_head[:, k].reshape(-1, weight.shape[1]), None if of_bias is None else of_bias[:, k].ravel())
        for k in (0, 1)
    )
    return query, key


def _check(layer: Layer, weights: Floats, location: str) -> None:
    """Raise InputError if recomputed attention weights differ from those of the model, an (n, H, T) array."""
    remedy = "its scores are not bilinear in its inputs, so margins are not defined"
    if weights.shape[1] != layer.num_heads:
        raise ja.InputError(f"{location}: the layer returns no attention weights; {remedy}")
    worst = 0.0
    for head in range(layer.num_heads):
        scores = layer.scores(head)
        recomputed = np.exp(scores - scores.max(axis=1, keepdims=True))
        recomputed /= recomputed.sum(axis=1, keepdims=True)
        worst = max(worst, float(np.abs(recomputed - weights[:, head]).max()))
    if not worst <= _AGREES:
        raise ja.InputError(
            f"{location}: attention weights differ from softmax(kᵀq/√c) by up to {worst:.2g}; {remedy}"
        )
