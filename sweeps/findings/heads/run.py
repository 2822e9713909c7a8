"""Measure which tokens the heads of a transformer select, and by what margin.

    python sweeps/findings/heads/run.py models/my-encoder --texts reviews.txt
    python sweeps/findings/heads/run.py models/my-decoder --texts reviews.txt --position 20 --layers 0 1
    python sweeps/findings/heads/run.py training/step_* --texts reviews.txt     # curves over checkpoints

The script writes a page, three tables and figures to --out. It requires the extra `transformers`. The models
are folders in Hugging Face format, with weights and tokenizer. Nothing is downloaded, and no code from a
folder is run. An interrupted run resumes after the last finished layer.
"""

import argparse
import sys
from pathlib import Path

from attention_heads import heads, read_texts
from head_measures import HeadSettings

import jaxattn as ja


def main() -> None:
    """Measure the heads of the models on the command line."""
    given = arguments()
    defaults = HeadSettings()
    settings = HeadSettings(**{name: getattr(given, name) for name in defaults._fields})
    try:
        found = heads(
            given.models,
            read_texts(given.texts, given.most),
            position=given.position,
            length=given.length,
            layers=given.layers,
            settings=settings,
            out=given.out,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        paths = found.write(given.out)
    except (ja.InputError, OSError) as error:
        sys.exit(f"run.py: {error}")
    print("\n".join([*found.summary(), *map(str, paths)]))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add, defaults = parser.add_argument, HeadSettings()
    add("models", nargs="+", type=Path, help="one folder, or the checkpoints of one training run")
    add("--texts", type=Path, required=True, help="UTF-8 file with one text per line")
    add("--position", type=position, help="first, last or an index; default: first for an encoder, else last")
    add("--length", type=int, default=64, help="number of tokens to which texts are truncated")
    add("--most", type=int, default=200, help="maximum number of texts")
    add("--layers", type=int, nargs="+", help="indices of the layers; default: all")
    add("--share", type=float, default=defaults.share, help="attention that one token must receive")
    add("--selecting", type=float, default=defaults.selecting, help="share of sequences with such a token")
    add("--group", type=int, default=defaults.group, help="sequences in each max-margin problem")
    add("--draws", type=int, default=defaults.draws, help="random queries for each null; 0 for none")
    add(
        "--nuclear",
        type=int,
        default=defaults.nuclear,
        help="groups with a nuclear-norm margin",
    )
    add("--seed", type=int, default=defaults.seed, help="seed of the nulls")
    add("--out", type=Path, default=Path("results/heads"))
    return parser.parse_args()


def position(text: str) -> str | int:
    """Parse a query position."""
    return text if text in ("first", "last") else int(text)


if __name__ == "__main__":
    main()
