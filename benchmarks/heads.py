"""Texts and small transformers for `jaxattn heads`; see docs/findings/heads.md.

    python benchmarks/heads.py texts imdb.txt --data-dir DIR      # 200 texts of the training split of IMDB
    python benchmarks/heads.py train checkpoints --data-dir DIR   # five seeds of a one-layer encoder

Requires the extra `transformers`.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

SEED, TEXTS, LENGTH, WORDS = 20261127, 200, 64, 5000
STEPS, BATCH, SEEDS = (0, 100, 300, 1000, 3000), 64, 5


def read(data_dir: Path, split: str) -> tuple[list[str], np.ndarray]:
    """Return the texts of a split without markup, and their labels."""
    source = tfds.data_source("imdb_reviews", data_dir=str(data_dir), split=split)
    texts = [" ".join(row["text"].decode().replace("<br />", " ").split()) for row in source]
    return texts, np.array([int(row["label"]) for row in source])


def write_texts(path: Path, data_dir: Path, split: str = "train") -> None:
    """Write a random sample of texts, one per line."""
    texts, _ = read(data_dir, split)
    chosen = np.random.default_rng(SEED).choice(len(texts), TEXTS, replace=False)
    path.write_text("".join(f"{texts[k]}\n" for k in chosen), encoding="utf-8")


def tokenizer(texts: list[str]):
    """Return a tokenizer of the most frequent lower-case words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    split, lower = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=True)
    counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(lower.normalize_str(text)))
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(word for word, _ in counts.most_common(WORDS))]
    ids = {name: k for k, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = lower, split
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def train(folder: Path, data_dir: Path) -> None:
    """Train the encoders; save checkpoints below folder/seed_S/step_N."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    texts, labels = read(data_dir, "train")
    words = tokenizer(texts)
    coded = words(texts, truncation=True, max_length=LENGTH, padding="max_length", return_tensors="pt")
    targets = torch.from_numpy(labels)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
        adam = torch.optim.Adam(model.parameters(), lr=1e-3)
        rng = np.random.default_rng(seed)
        for step in range(max(STEPS) + 1):
            if step in STEPS:
                place = folder / f"seed_{seed}" / f"step_{step:05d}"
                model.save_pretrained(place)
                words.save_pretrained(place)
            rows = torch.from_numpy(rng.choice(len(texts), BATCH, replace=False))
            adam.zero_grad()
            found = model(
                input_ids=coded["input_ids"][rows],
                attention_mask=coded["attention_mask"][rows],
                labels=targets[rows],
            )
            found.loss.backward()
            adam.step()
            if step % 500 == 0:
                print(f"seed {seed} step {step}: loss {found.loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["texts", "train"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--split", default="train")
    given = parser.parse_args()
    if given.what == "texts":
        write_texts(given.path, given.data_dir, given.split)
    else:
        train(given.path, given.data_dir)
