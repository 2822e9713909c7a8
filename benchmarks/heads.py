r"""Prepare texts and train small transformers for sweeps/findings/heads/run.py (docs/findings/heads.md).

    python benchmarks/heads.py texts imdb.txt --data-dir DIR      # 200 texts of the training split of IMDB
    python benchmarks/heads.py train checkpoints --data-dir DIR   # five seeds of a one-layer encoder
    python benchmarks/heads.py texts held_out.txt --split test --data-dir DIR
    for s in 0 1 2 3 4; do
        python sweeps/findings/heads/run.py checkpoints/seed_$s/step_* --texts held_out.txt --share 0 \
            --draws 0 --nuclear 0 --out heads/seed_$s
    done
    python benchmarks/heads.py summary heads                      # means by step, intervals over seeds

    python benchmarks/heads.py check MODEL --texts imdb.txt       # heads of layer 1 against clarabel

The script requires the extra `transformers`.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import tensorflow_datasets as tfds

from jaxattn.lab.results.intervals import student_t

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
    """Return a tokenizer whose vocabulary consists of the most frequent lower-case words."""
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
    """Train the encoders, and save checkpoints to folder/seed_S/step_N."""
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


def summary(folder: Path) -> None:
    """Print means over heads at each step and their change from step 100 to the last step.

    The intervals are over seeds.
    """
    rows = []
    for place in sorted(folder.glob("seed_*")):
        margins = pd.read_csv(place / "margins.csv")
        own = margins[(margins["space"] == "query") & (margins["group"] >= 0)]
        means = own.groupby("model")[["cosine", "ratio"]].mean()
        means["norm"] = pd.read_csv(place / "heads.csv").groupby("model")["norm"].mean()
        rows.append(means.assign(seed=place.name))
    table = pd.concat(rows).reset_index().set_index(["seed", "model"])
    for name in ("cosine", "ratio", "norm"):
        by_step = table[name].unstack("model")
        for step in by_step:
            print(name, step, with_interval(by_step[step]))
        first, last = by_step["step_00100"], by_step[by_step.columns[-1]]
        print(name, "difference from step 100 to the last", with_interval(last - first))


def check(folder: Path, texts: Path) -> None:
    """Print how far margin ratios and cosines of three heads differ from those of clarabel and NumPy."""
    import clarabel
    from scipy import sparse

    sys.path.append(str(Path(__file__).parents[1] / "sweeps" / "findings" / "heads"))
    from attention_heads import read_texts
    from head_margins import margin_ratio, selecting_sequences
    from transformer import Transformer

    model = Transformer(folder)
    tokens = model.tokenize(read_texts(texts, TEXTS), LENGTH, "last" if model.decoder else "first")
    layer = model.layer(1, tokens)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    done = 0
    for head in range(layer.num_heads):
        chosen = selecting_sequences(layer, layer.scores(head), 0.9).group(0, 12)
        if len(chosen.rows) < 12 or done == 3:
            continue
        done += 1
        features, sequences = [], chosen.query
        # Express the queries in an orthonormal basis, which preserves matrix norms on their span.
        basis = np.linalg.qr(sequences.T)[0]
        keys = layer.keys(head)
        for row, top, z in zip(chosen.rows, chosen.top, sequences @ basis, strict=True):
            for t in np.flatnonzero(layer.visible[row]):
                if t != top:
                    features.append(np.outer(keys[row, top] - keys[row, t], z).ravel())
        features = np.array(features)
        size = features.shape[1]
        solver = clarabel.DefaultSolver(
            sparse.identity(size, format="csc"),
            np.zeros(size),
            sparse.csc_matrix(-features),
            -np.ones(len(features)),
            [clarabel.NonnegativeConeT(len(features))],
            settings,
        )
        best = np.array(solver.solve().x)
        own = (layer.query_matrix(head) @ basis).ravel()
        margin = (features @ own).min() / np.linalg.norm(own)
        cosine = own @ best / np.linalg.norm(own) / np.linalg.norm(best)
        found = margin_ratio(layer, head, chosen, "query")
        print(
            f"head {head}: ratio {found.ratio:.8f}, "
            f"differs by {found.ratio - margin * np.linalg.norm(best):.1e}; "
            f"cosine {found.cosine:.8f}, differs by {found.cosine - cosine:.1e}; gap {found.gap:.1e}",
            flush=True,
        )


def with_interval(values: pd.Series) -> str:
    low, high = student_t(values.to_numpy())
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}] (n={len(values)})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["texts", "train", "summary", "check"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--texts", type=Path)
    given = parser.parse_args()
    if given.what == "summary":
        summary(given.path)
    elif given.what == "check":
        check(given.path, given.texts)
    elif given.data_dir is None:
        parser.error("--data-dir is required: the folder of tensorflow-datasets")
    elif given.what == "texts":
        write_texts(given.path, given.data_dir, given.split)
    else:
        train(given.path, given.data_dir)
