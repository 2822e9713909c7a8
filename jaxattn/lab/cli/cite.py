"""BibTeX of this software, of the paper that it implements, and of what a study rests on."""

from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from jaxattn.lab.cli.console import say

# Keys in papers.bib, by the names of files of code in sweeps/neighbours, which manifests keep.
NEIGHBOURS = {
    "and_of_words": ("yang2024cooccurrence",),
    "attention_svm": ("tarzanagh2023transformers",),
    "attention_svm_joint": ("tarzanagh2023maxmargin",),
    "attention_svm_p": ("tarzanagh2023maxmargin",),
    "benign_overfitting": ("sakamoto2024benign",),
    "factual_capacity": ("nichani2024factual",),
    "factual_recall": ("nichani2024factual",),
    "mirror_descent": ("julistiono2024mirror",),
    "plateaus": ("zucchet2025emergence",),
    "rates": ("vasudeva2024implicit", "wang2023achieving"),
    "scan_and_snap": ("tian2023scan",),
    "single_location": ("marion2024single",),
    "single_location_starts": ("marion2024single",),
    "topic_words": ("lu2021dynamics",),
    "two_steps": ("magen2024benign",),
    "value_softmax": ("varre2026gradient",),
    "which_margin": ("fan2025implicit",),
}
METHODS = {
    "normalized": "vasudeva2024implicit",
    "polyak": "vasudeva2024implicit",
    "dual_acceleration": "ji2021fast",
    "adam": "kingma2015adam",
    "adamw": "kingma2015adam",
}


def cite(
    directories: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="[DIR ...]", help="Results folders of studies to cite for.")
    ] = (),
    /,
) -> int:
    """Print BibTeX of this software and its paper, and of what studies rest on: data, methods, their source.

    Example: jaxattn cite results/quickstart
    """
    from jaxattn.lab.cli.options import read_folders
    from jaxattn.lab.storage import manifest
    from jaxattn.lab.storage.bucket import fetched

    papers = ["wu2025attention"]
    for folder in read_folders(directories)[0] if directories else ():
        papers += used(manifest.read(fetched(folder, tables=False)))
    known = entries()
    say("\n\n".join([software(), *(known[key] for key in dict.fromkeys(papers))]))
    return 0


def software() -> str:
    """Write the entry of this software."""
    import jaxattn

    lines = [
        "@software{jaxattn,",
        "  author = {{The jaxattn developers}},",
        "  title = {{jaxattn: attention with trained embeddings in JAX}},",
        f"  version = {{{jaxattn.__version__}}},",
        "  year = {2026},",
        *([f"  url = {{{jaxattn.__url__}}},"] if jaxattn.__url__ else []),
        "}",
    ]
    return "\n".join(lines)


def entries() -> dict[str, str]:
    """Return the entries of papers.bib by their keys."""
    text = files("jaxattn.lab.cli").joinpath("papers.bib").read_text(encoding="utf-8")
    return {entry.partition("{")[2].partition(",")[0]: entry for entry in text.strip().split("\n\n")}


def used(manifest: Mapping[str, Any]) -> list[str]:
    """List the keys of the papers whose results, data or methods a study used, by its manifest."""
    config = manifest["config"]
    stems = [Path(name.partition(":")[0]).stem for name in manifest.get("code", {})]
    found = [paper for stem in stems for paper in NEIGHBOURS.get(stem, ())]
    if config.get("probes", {}).get("max_margin"):
        found.append("tarzanagh2023transformers")
    for key, value in _settings(config):
        match key, value:
            case (("optimizer" | "method"), str()) if value in METHODS:
                found.append(METHODS[value])
            case "kind", "joint_flow":
                found.append("tarzanagh2023maxmargin")
            case "kind", "topics":
                found.append("lu2021dynamics")
            case "dataset", str() if value.startswith("imdb_reviews"):
                found.append("maas2011learning")
            case "label_noise", int() | float() if value:
                found.append("sakamoto2024benign")
    return list(dict.fromkeys(found))


def _settings(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """List all settings of a config with the last part of their keys, values of axes too."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _settings(value, name.rpartition(".")[2])
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _settings(value, key)
    else:
        yield key, tree
