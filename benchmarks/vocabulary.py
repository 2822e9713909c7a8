"""Find the tokenisers and count cut-offs that give the paper's vocabulary sizes.

    python benchmarks/vocabulary.py --data-dir DIRECTORY_OF_TFDS --yelp FILE.parquet --out results/vocabulary

The paper reports V = 7,766 for IMDB and V = 5,424 for Yelp. On IMDB, its bins of the posterior difference
cover [-1, 14/15], so -1 and 14/15 = (29 - 1)/30 are the smallest and the largest posterior difference in its
vocabulary. For each tokeniser, counting method, length limit and fraction of the training reviews, the script
finds the cut-off for which the vocabulary size is closest to V, and the corresponding range of the posterior
difference.
"""

import argparse
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from imdb import folder_of_imdb

from jaxattn.lab.pages.layout import markdown
from jaxattn.lab.texts.text import tokenise

WANTED = {"IMDB": 7766, "Yelp": 5424}
HIGHEST = 14 / 15
_TAG = re.compile(r"<[^>]*>")
_PUNCTUATION = re.compile(r"[^\w\s]")


def words(pattern: str, *, lower: bool = True) -> Callable[[str], list[str]]:
    found = re.compile(pattern)
    return lambda text: found.findall(_TAG.sub(" ", text.lower() if lower else text))


TOKENISERS: dict[str, Callable[[str], list[str]]] = {
    "words with inner apostrophes (jaxattn)": tokenise,
    "words with inner apostrophes, tags left in": lambda text: tokenise(text.replace("<", "<<")),
    r"\w+": words(r"\w+"),
    r"\w+, case kept": words(r"\w+", lower=False),
    r"\w\w+ (scikit-learn)": words(r"\w\w+"),
    "letters alone": words(r"[a-z]+"),
    "letters and apostrophes": words(r"[a-z']+"),
    "words and each punctuation mark": words(r"\w+|[^\w\s]"),
    "split at spaces": lambda text: _TAG.sub(" ", text.lower()).split(),
    "split at spaces, tags left in": lambda text: text.lower().split(),
    "split at spaces, case kept": str.split,
    "punctuation deleted, split at spaces": lambda text: _PUNCTUATION.sub(
        "", _TAG.sub(" ", text.lower())
    ).split(),
    "punctuation to spaces, split at spaces (Keras)": lambda text: re.sub(
        r'[!"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~\t\n]', " ", text.lower()
    ).split(),
    "English contractions and marks apart (basic_english)": lambda text: re.sub(
        r"([.,!?()'])", r" \1 ", re.sub(r'[";:]', " ", re.sub(r"<br />", " ", text.lower()))
    ).split(),
}
LIMITS = (None, 512, 256, 128)
SHARES = (1.0, 0.8, 0.5, 0.4, 0.2)


def tally(texts: list[str], split: Callable[[str], list[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the token index, the text index and the position in the text of each token occurrence."""
    index: dict[str, int] = {}
    rows = [np.array([index.setdefault(word, len(index)) for word in split(text)], int) for text in texts]
    lengths = [len(row) for row in rows]
    places = np.concatenate([np.arange(length) for length in lengths])
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), lengths), places


def settings(texts: list[str], positive: np.ndarray, wanted: int) -> Iterator[dict[str, object]]:
    """Yield a row per tokeniser setting, with the cut-off whose vocabulary size is closest to `wanted`."""
    order = np.random.default_rng(0).permutation(len(texts))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    for name, split in TOKENISERS.items():
        print(name, flush=True)
        token, owner, place = tally(texts, split)
        # If a word occurs within a review's length limit, its first occurrence is also within this limit.
        once = np.zeros(len(token), bool)
        once[np.unique(token * len(texts) + owner, return_index=True)[1]] = True
        for limit, share, by in itertools.product(LIMITS, SHARES, ("occurrence", "review")):
            kept = (place < (limit or np.inf)) & (rank[owner] < share * len(texts))
            kept &= once if by == "review" else True
            count, up = np.bincount(token[kept]), np.bincount(token[kept], positive[owner[kept]])
            cut = nearest(count, wanted)
            known = count >= cut
            difference = (2 * up[known] - count[known]) / count[known]
            yield {
                "tokeniser": name,
                "first tokens of a review": limit or "all",
                "share of the reviews": share,
                "counted by": by,
                "at least": cut,
                "V": int(known.sum()),
                "lowest": difference.min(),
                "highest": difference.max(),
            }


def nearest(count: np.ndarray, wanted: int) -> int:
    """Return the minimum count for which the vocabulary size is closest to `wanted`."""
    tail = np.cumsum(np.bincount(count)[::-1])[::-1]
    return int(1 + np.abs(tail[1:] - wanted).argmin())


def read(arguments: argparse.Namespace) -> Iterator[tuple[str, list[str], np.ndarray]]:
    if arguments.data_dir:
        import tensorflow_datasets as tfds

        rows = tfds.data_source("imdb_reviews", data_dir=arguments.data_dir, split="train")
        pairs = [(row["text"].decode(), row["label"]) for row in rows]
        yield "IMDB", [text for text, _ in pairs], np.array([label for _, label in pairs])
    if arguments.yelp:
        table = pd.read_parquet(arguments.yelp)
        table = table[(table["label"] >= 0) & (table["split"] != "test")]
        yield "Yelp", table["text"].tolist(), table["label"].to_numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", type=folder_of_imdb, help="directory of tensorflow-datasets, for IMDB")
    parser.add_argument("--yelp", help="Parquet file with text, label (-1 to leave out) and split")
    parser.add_argument("--out", type=Path, help="folder for vocabulary_IMDB.csv and the like")
    arguments = parser.parse_args()
    for name, texts, positive in read(arguments):
        frame = pd.DataFrame(settings(texts, positive, WANTED[name]))
        frame["off by"] = (frame["V"] - WANTED[name]).abs()
        frame["range fits"] = np.isclose(frame["lowest"], -1) & np.isclose(frame["highest"], HIGHEST)
        frame = frame.sort_values(["range fits", "off by"], ascending=[False, True], ignore_index=True)
        print(f"\n{name}: V = {WANTED[name]:,}; {len(frame)} settings\n\n{markdown(frame.head(25))}")
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            frame.to_csv(arguments.out / f"vocabulary_{name.lower()}.csv", index=False)


if __name__ == "__main__":
    main()
