"""BibTeX of this software, of the paper that it implements, and of what a study rests on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tyro.conf import Positional, arg


class Paper(NamedTuple):
    """A paper: its BibTeX key, authors, title, year, where it appeared, and its number in arXiv."""

    key: str
    authors: str
    title: str
    year: int
    venue: str = ""
    arxiv: str = ""

    @property
    def bibtex(self) -> str:
        """The entry."""
        kind, where = ("inproceedings", "booktitle") if self.venue else ("misc", "")
        fields = {"author": self.authors, "title": f"{{{self.title}}}", "year": str(self.year)}
        fields |= {where: self.venue} if where else {}
        fields |= {"eprint": self.arxiv, "archivePrefix": "arXiv"} if self.arxiv else {}
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
        return "\n".join([f"@{kind}{{{self.key},", *lines, "}"])


WU = Paper(
    "wu2025attention",
    "Wu, Diyuan and Shevchenko, Aleksandr and Oymak, Samet and Mondelli, Marco",
    "Attention with Trained Embeddings Provably Selects Important Tokens",
    2025,
    "Advances in Neural Information Processing Systems",
    "2505.17282",
)
MAX_MARGIN = Paper(
    "tarzanagh2023maxmargin",
    "Ataee Tarzanagh, Davoud and Li, Yingcong and Zhang, Xuechen and Oymak, Samet",
    "Max-Margin Token Selection in Attention Mechanism",
    2023,
    "Advances in Neural Information Processing Systems",
    "2306.13596",
)
SVM = Paper(
    "tarzanagh2023transformers",
    "Ataee Tarzanagh, Davoud and Li, Yingcong and Thrampoulidis, Christos and Oymak, Samet",
    "Transformers as Support Vector Machines",
    2023,
    arxiv="2308.16898",
)
RATES = Paper(
    "vasudeva2024implicit",
    "Vasudeva, Bhavya and Deora, Puneesh and Thrampoulidis, Christos",
    "Implicit Bias and Fast Convergence Rates for Self-attention",
    2024,
    arxiv="2402.05738",
)
DUAL = Paper(
    "ji2021fast",
    "Ji, Ziwei and Srebro, Nathan and Telgarsky, Matus",
    "Fast Margin Maximization via Dual Acceleration",
    2021,
    "International Conference on Machine Learning",
    "2107.00595",
)
TOPICS = Paper(
    "lu2021dynamics",
    "Lu, Haoye and Mao, Yongyi and Nayak, Amiya",
    "On the Dynamics of Training Attention Models",
    2021,
    "International Conference on Learning Representations",
    "2011.10036",
)
ADAM = Paper(
    "kingma2015adam",
    "Kingma, Diederik P. and Ba, Jimmy",
    "Adam: A Method for Stochastic Optimization",
    2015,
    "International Conference on Learning Representations",
    "1412.6980",
)
IMDB = Paper(
    "maas2011learning",
    "Maas, Andrew L. and Daly, Raymond E. and Pham, Peter T. and Huang, Dan and Ng, Andrew Y. and Potts, "
    "Christopher",
    "Learning Word Vectors for Sentiment Analysis",
    2011,
    "Annual Meeting of the Association for Computational Linguistics",
)
LABEL_NOISE = Paper(
    "sakamoto2024benign",
    "Sakamoto, Keitaro and Sato, Issei",
    "Benign Overfitting in Token Selection of Attention Mechanism",
    2024,
    arxiv="2409.17625",
)
MIRROR = Paper(
    "julistiono2024mirror",
    "Julistiono, Addison Kristanto and Ataee Tarzanagh, Davoud and Azizan, Navid",
    "Optimizing Attention with Mirror Descent: Generalized Max-Margin Token Selection",
    2024,
    arxiv="2410.14581",
)
RECALL = Paper(
    "nichani2024factual",
    "Nichani, Eshaan and Lee, Jason D. and Bietti, Alberto",
    "Understanding Factual Recall in Transformers via Associative Memories",
    2024,
    arxiv="2412.06538",
)
SINGLE_LOCATION = Paper(
    "marion2024single",
    "Marion, Pierre and Berthier, Raphaël and Biau, Gérard and Boyer, Claire",
    "Attention Layers Provably Solve Single-Location Regression",
    2024,
    arxiv="2410.01537",
)
TWO_STEPS = Paper(
    "magen2024benign",
    "Magen, Roey and Shang, Shuning and Xu, Zhiwei and Frei, Spencer and Hu, Wei and Vardi, Gal",
    "Benign Overfitting in Single-Head Attention",
    2024,
    arxiv="2410.07746",
)
AND = Paper(
    "yang2024cooccurrence",
    "Yang, Hongru and Kailkhura, Bhavya and Wang, Zhangyang and Liang, Yingbin",
    "Training Dynamics of Transformers to Recognize Word Co-occurrence via Gradient Flow Analysis",
    2024,
    arxiv="2410.09605",
)
PLATEAUS = Paper(
    "zucchet2025emergence",
    "Zucchet, Nicolas and D'Angelo, Francesco and Lampinen, Andrew K. and Chan, Stephanie C. Y.",
    "The Emergence of Sparse Attention: Impact of Data Distribution and Benefits of Repetition",
    2025,
    arxiv="2505.17863",
)
RESCALING = Paper(
    "wang2023achieving",
    "Wang, Mingze and Min, Zeping and Wu, Lei",
    "Achieving Margin Maximization Exponentially Fast via Progressive Norm Rescaling",
    2023,
    arxiv="2311.14387",
)
POLARIZES = Paper(
    "varre2026gradient",
    "Varre, Aditya and Rofin, Mark and Flammarion, Nicolas",
    "Gradient Flow Polarizes Softmax Outputs towards Low-Entropy Solutions",
    2026,
    arxiv="2603.06248",
)
SCAN_AND_SNAP = Paper(
    "tian2023scan",
    "Tian, Yuandong and Wang, Yiping and Chen, Beidi and Du, Simon",
    "Scan and Snap: Understanding Training Dynamics and Token Composition in 1-layer Transformer",
    2023,
    "Advances in Neural Information Processing Systems",
    "2305.16380",
)
SIGN_DESCENT = Paper(
    "fan2025implicit",
    "Fan, Chen and Schmidt, Mark and Thrampoulidis, Christos",
    "Implicit Bias of SignGD and Adam on Multiclass Separable Data",
    2025,
    arxiv="2502.04664",
)

# Neighbours by the names of their files of code in sweeps/neighbours, which manifests keep.
NEIGHBOURS: dict[str, tuple[Paper, ...]] = {
    "and_of_words": (AND,),
    "attention_svm": (SVM,),
    "attention_svm_joint": (MAX_MARGIN,),
    "attention_svm_p": (MAX_MARGIN,),
    "benign_overfitting": (LABEL_NOISE,),
    "factual_capacity": (RECALL,),
    "factual_recall": (RECALL,),
    "mirror_descent": (MIRROR,),
    "plateaus": (PLATEAUS,),
    "rates": (RATES, RESCALING),
    "scan_and_snap": (SCAN_AND_SNAP,),
    "single_location": (SINGLE_LOCATION,),
    "single_location_starts": (SINGLE_LOCATION,),
    "topic_words": (TOPICS,),
    "two_steps": (TWO_STEPS,),
    "value_softmax": (POLARIZES,),
    "which_margin": (SIGN_DESCENT,),
}
METHODS = {"normalized": RATES, "polyak": RATES, "dual_acceleration": DUAL, "adam": ADAM, "adamw": ADAM}


def cite(
    directories: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="[DIR ...]", help="Results folders of studies to cite for.")
    ] = (),
    /,
) -> int:
    """Print BibTeX of this software and its paper, and of what studies rest on: data, methods, their source.

    Example: jaxattn cite results/quickstart
    """
    from jaxattn.cli.options import read_folders
    from jaxattn.storage import manifest
    from jaxattn.storage.bucket import fetched

    papers = [WU]
    for folder in read_folders(directories)[0] if directories else ():
        papers += used(manifest.read(fetched(folder, tables=False)))
    print("\n\n".join([software(), *(paper.bibtex for paper in dict.fromkeys(papers))]))
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


def used(manifest: Mapping[str, Any]) -> list[Paper]:
    """List the papers whose results, data or methods a study used, by its manifest."""
    config = manifest["config"]
    files = [Path(name.partition(":")[0]).stem for name in manifest.get("code", {})]
    found = [paper for file in files for paper in NEIGHBOURS.get(file, ())]
    if config.get("probes", {}).get("max_margin"):
        found.append(SVM)
    for key, value in _settings(config):
        match key, value:
            case (("optimizer" | "method"), str()) if value in METHODS:
                found.append(METHODS[value])
            case "kind", "joint_flow":
                found.append(MAX_MARGIN)
            case "kind", "topics":
                found.append(TOPICS)
            case "dataset", str() if value.startswith("imdb_reviews"):
                found.append(IMDB)
            case "label_noise", int() | float() if value:
                found.append(LABEL_NOISE)
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
