"""The corpus that a file describes: the [data] table of a sweep file, counted with any vocabulary."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxattn.data import text
from jaxattn.data.corpus import Corpus
from jaxattn.data.text import Progress, silent
from jaxattn.errors import InputError
from jaxattn.study import corpora
from jaxattn.study.check import check, placed
from jaxattn.study.config import Synthetic
from jaxattn.study.tree import assign, parse


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
        path: a TOML file with a [data] table as in sweep files; whatever else it holds is left alone.
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
    path = Path(path)
    with placed(str(path)):
        config = _data(path, overrides)
        if isinstance(config, Synthetic):
            if vocabulary is not None:
                raise InputError("data.kind: a synthetic corpus has no words; leave the vocabulary out")
            corpora.check(config)
            drawn = corpora.load(config, corpora.seed_keys([seed])[0], progress)
            return jax.tree.map(lambda x: x[0], drawn.corpora.train), tuple(drawn.names)
    tokens = None if vocabulary is None else _lines(Path(vocabulary))
    loaded = text.load(config, tokens=tokens, progress=progress)
    return loaded.train, loaded.vocabulary.tokens


def _data(path: Path, overrides: Sequence[str]) -> Any:
    tree = {"data": _toml(path).get("data")}
    if not isinstance(tree["data"], dict):
        raise InputError("no [data] table; write one as in a sweep file")
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key.strip().startswith("data."):
            raise InputError(f"--set {override}: expected data.KEY=VALUE")
        assign(tree, key.strip(), parse(value))
    # The checks of a sweep file name the key and a near right one; its other tables only have to be there.
    rest = {
        "name": "corpus",
        "model": {"kind": "one_layer", "dim": 1},
        "phases": [{"name": "none", "kind": "one_step", "step_size": 1.0}],
    }
    return check(rest | tree).data


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); give a TOML file with a [data] table") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not valid TOML: {error}") from None


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give one token per line") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    # Other line ends, such as U+2028, may well be tokens.
    return content.removesuffix("\n").split("\n")
