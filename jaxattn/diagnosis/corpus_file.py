"""The corpus that a file describes: the [data] table of a sweep file, counted with any vocabulary."""

from collections.abc import Sequence
from pathlib import Path

from jaxattn.base import Dataset, Progress, silent
from jaxattn.core.errors import InputError, at
from jaxattn.data import text
from jaxattn.data.corpus import Corpus
from jaxattn.data.source import Source
from jaxattn.study import toml
from jaxattn.study.definition import Definition
from jaxattn.study.import_paths import ImportPaths
from jaxattn.study.seed import dataset

# A study is more than a corpus; what else it says makes no difference to that.
REST = {
    "name": "corpus",
    "model": {"kind": "one_layer", "dim": 1},
    "phases": [{"name": "none", "kind": "one_step", "step_size": 1.0}],
}


def read_corpus(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    vocabulary: str | Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Corpus, tuple[str, ...]]:
    """Read or draw the training corpus that a [data] table describes.

    Args:
        path: a TOML file with a [data] table as in sweep files, or one that extends such a file; whatever
            else it holds is left alone.
        overrides: `data.key=value`, applied on top.
        vocabulary: a UTF-8 file with one token per line: token k is the one in line k + 1. Texts are counted
            with it, in lower case. By default tokens are those of the training texts.
        seed: whose corpus a synthetic one is: that of this seed of a sweep.
        progress: told how far the reading is.

    Returns:
        The corpus and the names of its V tokens.

    Raises:
        InputError: a missing or malformed file, an impossible setting, data that cannot be read.
    """
    setting = _study(Path(path), overrides).base
    if vocabulary is not None:
        if not isinstance(setting.data, Source):
            raise InputError(f"{path}: data.kind: this corpus has no words; leave the vocabulary out")
        read = text.load(setting.data, tokens=_lines(Path(vocabulary)), progress=progress)
        return _bags(read.train, path), read.vocabulary.tokens
    loaded = dataset(setting.data, seed, setting.dtype, progress=progress)
    return _bags(loaded.splits.train, path), tuple(loaded.tokens)


def _bags(data: Dataset, path: str | Path) -> Corpus:
    if not isinstance(data, Corpus):
        raise InputError(f"{path}: its data are {type(data).__name__}; give bags of tokens with a class")
    return data


def _study(path: Path, overrides: Sequence[str]) -> Definition:
    tree = {"data": toml.tables(path).get("data")}
    with at(str(path)):
        if tree["data"] is None:
            raise InputError("no [data] table; write one as in a sweep file")
        for override in overrides:
            if not override.strip().startswith("data."):
                raise InputError(f"--set {override}: expected data.KEY=VALUE")
        toml.change(tree, overrides)
        return Definition(REST | tree, ImportPaths(path.parent))


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give one token per line") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    # Other line ends, such as U+2028, may well be tokens.
    return content.removesuffix("\n").split("\n")
