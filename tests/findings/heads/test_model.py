"""Layers of small random transformers of several architectures; requires the extra `transformers`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import attention_heads
import numpy as np
import pytest
from attention_heads import heads, read_texts
from head_margins import margin_ratio, selecting_sequences
from head_measures import HeadSettings
from transformer import Transformer

import jaxattn as ja

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = ["the cat sat on the mat .", "a dog ran to the cat", "the mat is flat .", "dogs and cats sat ."] * 3
RUN = Path(__file__).parents[3] / "sweeps" / "findings" / "heads" / "run.py"
SIZES = {"vocab_size": 24, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SIZES, intermediate_size=32, max_position_embeddings=16),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=24, dim=24, n_layers=2, n_heads=4, hidden_dim=32, max_position_embeddings=16
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=24, n_embd=24, n_layer=2, n_head=4, n_positions=16),
    "llama": lambda: transformers.LlamaConfig(**SIZES, intermediate_size=32, num_key_value_heads=2),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZES, intermediate_size=32, rotary_pct=0.5),
}


def save(folder, config, *, tokenizer=True):
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower() and parameter.ndim > 1:
                parameter.mul_(8)  # sharper attention than that of a new model
    model.save_pretrained(folder)
    if tokenizer:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors

        words = sorted({word for text in TEXTS for word in text.split()})
        ids = {x: k for k, x in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
        made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
        ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return {name: save(base / name, make()) for name, make in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_recomputed_attention_matches_the_model(folders, name):
    model = Transformer(folders[name])
    texts = model.tokenize(TEXTS, 8, "last" if model.decoder else "first")
    assert model.decoder == (name in ("gpt2", "llama", "gpt_neox"))
    reference = transformers.AutoModel.from_pretrained(folders[name], attn_implementation="eager").eval()
    with torch.no_grad():
        output = reference(
            input_ids=torch.tensor(texts.ids),
            attention_mask=torch.tensor(texts.present.astype(int)),
            output_attentions=True,
        )
    for number in range(2):
        layer = model.layer(number, texts)
        for head in range(4):
            scores = layer.scores(head)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            expected = output.attentions[number][np.arange(len(TEXTS)), head, texts.position]
            np.testing.assert_allclose(weights, expected.numpy(), atol=1e-5)


def test_attention_that_is_not_bilinear_is_rejected(tmp_path):
    config = transformers.Qwen3Config(
        **SIZES, intermediate_size=32, num_key_value_heads=2, head_dim=6, max_position_embeddings=16
    )
    model = Transformer(save(tmp_path / "qwen3", config))
    with pytest.raises(ja.InputError, match=r"layer 0 \(Qwen3Attention\): .*not bilinear in its inputs"):
        model.layer(0, model.tokenize(TEXTS, 8, "last"))


def test_encoder_decoder_is_rejected(tmp_path):
    config = transformers.T5Config(vocab_size=24, d_model=24, d_kv=6, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(ja.InputError, match="encoder-decoder model"):
        Transformer(save(tmp_path / "t5", config))


def test_invalid_folders_raise_one_line_errors(tmp_path, folders):
    with pytest.raises(ja.InputError, match=r"no config\.json"):
        Transformer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard"}))
    with pytest.raises(ja.InputError, match="transformers cannot load this model"):
        Transformer(tmp_path)
    bare = save(tmp_path / "bare", CONFIGS["bert"](), tokenizer=False)
    with pytest.raises(ja.InputError, match="tokenizer missing"):
        Transformer(bare)
    broken = save(tmp_path / "broken", CONFIGS["bert"]())
    model = transformers.AutoModel.from_pretrained(broken)
    with torch.no_grad():
        model.encoder.layer[1].attention.self.key.weight[0, 0] = float("nan")
    model.save_pretrained(broken)
    with pytest.raises(ja.InputError, match=r"encoder.layer.1.attention.self.key.weight contains NaN"):
        Transformer(broken)


def test_texts_shorter_than_the_queried_position_are_counted_in_the_error(folders):
    model = Transformer(folders["bert"])
    with pytest.raises(ja.InputError, match=r"no token at position 7 in 6 texts out of 12, .* in text 3"):
        model.tokenize(TEXTS, 16, 7)
    with pytest.raises(ja.InputError, match="texts: empty"):
        model.tokenize([], 16, 0)


SETTINGS = HeadSettings(share=0.2, group=3, draws=2, nuclear=1)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_interrupted_run_resumes_with_identical_tables(folders, tmp_path, monkeypatch, name):
    straight = heads(folders[name], TEXTS, settings=SETTINGS, out=tmp_path / "straight")
    measure, calls = attention_heads._measure, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*given)

    monkeypatch.setattr(attention_heads, "_measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        heads(folders[name], TEXTS, settings=SETTINGS, out=tmp_path / "killed")
    resumed = heads(folders[name], TEXTS, settings=SETTINGS, out=tmp_path / "killed")
    assert len(calls) == 3
    for field in ("heads", "margins", "verdicts"):
        assert getattr(resumed, field).equals(getattr(straight, field)) or (
            getattr(resumed, field).to_csv() == getattr(straight, field).to_csv()
        )
    assert set(straight.margins["space"]) == (
        {"query"} if name == "llama" else {"query", "frobenius", "nuclear"}
    )
    with pytest.raises(
        ja.InputError, match="contains results for another model or version, or for other texts or settings"
    ):
        heads(folders[name], TEXTS[1:], settings=SETTINGS, out=tmp_path / "killed")


def test_command_writes_the_page(folders, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = [sys.executable, str(RUN), str(folders["bert"]), str(folders["distilbert"])]
    words += ["--texts", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out"), "--share", "0.2"]
    ended = subprocess.run([*words, "--group", "3", "--draws", "2"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "out" / "heads.html").read_text(encoding="utf-8")
    assert "Heads over checkpoints" in page
    assert "have a selection" in ended.stdout


def test_invalid_arguments_raise_one_line_errors(folders, tmp_path):
    for settings, message in (
        (HeadSettings(group=1), "group: expected at least 2, got 1"),
        (HeadSettings(share=2), "share: expected a fraction from 0 to 1, got 2"),
    ):
        with pytest.raises(ja.InputError, match=message):
            heads(folders["bert"], TEXTS, settings=settings)
    with pytest.raises(ja.InputError, match=r"layers: no layer 2; .* has 2 layers, numbered from 0"):
        heads(folders["bert"], TEXTS, layers=[2])
    with pytest.raises(ja.InputError, match="length: expected at least 2 tokens, got 1"):
        heads(folders["bert"], TEXTS, length=1)
    with pytest.raises(ja.InputError, match="most: expected at least 1 text, got -3"):
        read_texts(tmp_path / "empty.txt", -3)
    with pytest.raises(ja.InputError, match=r"missing\.txt: No such file or directory; check its path"):
        read_texts(tmp_path / "missing.txt")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ja.InputError, match="contains no text; expected one text per line"):
        read_texts(tmp_path / "empty.txt")


def test_single_sequence_gives_no_interval_and_no_margins(folders):
    found = heads(folders["bert"], TEXTS[:1], settings=SETTINGS)
    assert not found.heads["has_selection"].any()
    assert found.heads["entropy_low"].isna().all()
    assert "0 of 8 heads have a selection" in found.summary()[0]


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_margins_of_loaded_layers_match_clarabel(folders, name, clarabel_direction):
    """One encoder, and one decoder with rotary positions: three heads with explicit features."""
    model = Transformer(folders[name])
    layer = model.layer(1, model.tokenize(TEXTS[:4], 8, "last" if model.decoder else "first"))
    for head in range(3):
        chosen = selecting_sequences(layer, layer.scores(head), 0.0)
        keys = layer.keys(head)
        basis = np.linalg.qr(chosen.query.T)[0]
        z = chosen.query @ basis
        features = [
            np.outer(keys[row, top] - keys[row, t], z[k]).ravel()
            for k, (row, top) in enumerate(zip(chosen.rows, chosen.top, strict=True))
            for t in np.flatnonzero(layer.visible[row])
            if t != top
        ]
        best = clarabel_direction(np.array(features))
        own = (layer.query_matrix(head) @ basis).ravel()
        found = margin_ratio(layer, head, chosen, "query")
        assert found.margin == pytest.approx((features @ own).min() / np.linalg.norm(own), rel=1e-6)
        assert found.largest == pytest.approx(1 / np.linalg.norm(best), rel=1e-6)
        cosine = own @ best / np.linalg.norm(own) / np.linalg.norm(best)
        assert found.cosine == pytest.approx(cosine, abs=1e-6)


def test_tutorial_code_runs(folders, tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "tutorials" / "heads.md").read_text(encoding="utf-8")
    code, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "my-encoder").symlink_to(folders["bert"])
    names: dict = {}
    exec(compile(code, "heads.md", "exec"), names)
    assert len(names["found"].heads) == 4
