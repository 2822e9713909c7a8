import importlib.util
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from safetensors.numpy import load_file

import jaxattn as ja
from jaxattn.lab.cli import results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
PAGES = {page: page.read_text(encoding="utf-8") for page in FILES}


def blocks(page, language):
    """Return the code blocks of a page of docs/."""
    return re.findall(rf"```{language}\n(.*?)```", PAGES[ROOT / "docs" / page], re.DOTALL)


def git(folder, *words):
    return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)


def printed():
    """Return the commands of jaxattn and its benchmarks that pages show, in blocks or table cells."""
    lines = []
    for text in PAGES.values():
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            lines += block.replace("\\\n", " ").replace("&&", "\n").splitlines()
        lines += re.findall(r"\| `(.*?)` \|", text)
    wanted = [line.partition(" #")[0] for line in lines if re.match(r"\s*(jaxattn|python benchmarks)", line)]
    return sorted({line.replace("SWEEP", "sweeps/quickstart.toml").strip() for line in wanted})


def is_study(words):
    return words[:2] in (["jaxattn", verb] for verb in ("run", "plan", "launch"))


def written(words):
    """Return the folder that a command writes to; None if it only prints."""
    if "--out" in words:
        return Path(words[words.index("--out") + 1])
    if is_study(words):
        return ja.Study.read(ROOT / words[2]).folder()
    function = getattr(results, words[1], len)
    out = inspect.signature(function).parameters.get("out")
    return out and out.default


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return the tracked files, in a separate repository."""
    listed = git(ROOT, "ls-files", "-z")
    if listed.returncode:
        pytest.skip("not a checkout of git")
    folder = tmp_path_factory.mktemp("clone")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    return folder


def test_commands_on_pages_do_not_write_tracked_files(clone):
    places = {command: written(command.split()) for command in printed()}
    places = {command: place for command, place in places.items() if place and place.parts[0] == "results"}
    assert "jaxattn run sweeps/quickstart.toml" in places
    for command, place in places.items():
        assert not (clone / place).exists(), command
        assert git(clone, "check-ignore", str(place / "file")).returncode == 0, command


@pytest.mark.parametrize(
    "sweep",
    [
        pytest.param(sweep, marks=() if sweep == "sweeps/quickstart.toml" else pytest.mark.more)
        for sweep in sorted({line.split()[2] for line in printed() if is_study(line.split())})
    ],
)
def test_studies_on_pages_are_valid_in_a_fresh_clone(sweep, clone, call, monkeypatch):
    if "imdb" in sweep:
        pytest.skip("needs data; that its folder is not there is tested above")
    monkeypatch.chdir(clone)
    status, _, error = call("plan", sweep, "--quick")
    assert status == 0, error
    assert git(clone, "diff", "--stat").stdout == ""


def outputs():
    """Return the output that README shows for the first command and for the Python code."""
    command, python = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    return command.splitlines(), python.splitlines()


@pytest.mark.parametrize("name", ["PYPI.md", "docs/index.md"])
def test_other_landing_pages_start_like_the_readme(name):
    opening = README.partition("\n## ")[0]
    assert "arxiv.org/abs/2505.17282" in opening
    assert (ROOT / name).read_text(encoding="utf-8").startswith(opening)


def test_the_landing_page_shows_the_code_of_the_readme():
    (code,) = re.findall(r"```python\n.*?```", README, re.DOTALL)
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"```python\n.*?```", page, re.DOTALL) == [code]
    assert f"```text\n{outputs()[1][0]}\n```" in page


def test_commands_in_the_readme_are_tested():
    (block,) = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert commands == [
        "pip install -e . && jaxattn run sweeps/quickstart.toml",
        'pip install -e ".[test]" && pytest',
    ]
    assert README.partition("\n## Two commands\n")[2].partition("\n## ")[0].count(block) == 1


def test_figure_in_the_readme_matches_its_command():
    """The image has twice the pixels of its displayed size and the name of its figure."""
    ((name, width, words),) = re.findall(r'<img src="(.*?)" width="(\d+)" alt="(.*?)">', README)
    assert words.startswith("jaxattn run sweeps/quickstart.toml draws ")
    run = ROOT / "results" / "published" / "quickstart"
    assert plt.imread(ROOT / name).shape[1] == 2 * int(width)
    asked = ja.Study.read(ROOT / "sweeps" / "quickstart.toml").config
    assert {"kind": "importance", "phase": "query"}.items() <= asked["figures"][1].items()
    made = json.loads((run / "study.json").read_text(encoding="utf-8"))
    assert made["command"].startswith("jaxattn run sweeps/quickstart.toml")
    for part in ("data", "model", "phases", "seeds"):
        assert made["config"][part] == asked[part], f"{part}: run the command, and publish its results again"


@pytest.mark.slow
def test_first_command_in_the_readme_prints_the_output_shown(call, tmp_path):
    status, out, error = call("run", ROOT / "sweeps" / "quickstart.toml", "--out", tmp_path / "run")
    assert status == 0, error
    printed = [line.split() for line in out.splitlines()]
    for line in outputs()[0]:
        assert line.split() in printed
    image = ja.load(tmp_path / "run").figure("importance", phase="query").png()
    drawn = plt.imread(BytesIO(image))
    shown = plt.imread(ROOT / "docs" / "images" / "quickstart.png")
    assert drawn.shape == shown.shape
    assert abs(drawn - shown).mean() < 0.01


@pytest.mark.more
def test_python_code_in_the_readme_prints_the_output_shown(capsys):
    (cell,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(cell, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert out.splitlines() == outputs()[1]
    assert float(out) < 1e-5


@pytest.mark.more
def test_code_on_the_python_page_yields_the_stated_shapes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in blocks("howto/python.md", "python"):
        exec(compile(cell, "python.md", "exec"), names)
    assert names["results"].finished
    assert (tmp_path / "results" / "first" / "report.html").exists()
    assert names["alpha"].shape == (64,)
    assert names["logits"].shape == (256,)
    assert names["params"].E.shape == (64, 1024)
    assert names["loss"].shape == ()
    assert names["corpus2"].num_examples == 2
    assert names["mm"].feasible
    assert names["mm"].duality_gap < 1e-10
    assert 1 - names["cosine"] < 1e-5


@pytest.mark.more
def test_tutorial_study_runs_and_sharpens_attention(tmp_path, monkeypatch):
    (cell,) = blocks("tutorials/own_model.md", "python")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    exec(compile(cell, "own_model.md", "exec"), names)
    entropy = names["entropy"].groupby("cell")["mean"]
    assert (abs(entropy.first() - 2.08) < 0.02).all()  # log 8
    assert (entropy.last() < 0.5).all()
    assert names["sharper"] < -0.5
    assert (names["selected"].groupby("cell")["mean"].last() > 0.5).all()
    assert names["wider"]["n"].eq(10).all()
    assert names["same"].records.equals(names["results"].records)


def test_the_tutorial_sweep_file_refers_to_the_model_file(tmp_path):
    (cell,) = blocks("tutorials/own_model.md", "python")
    (text,) = blocks("tutorials/own_model.md", "toml")
    model, _, rest = cell.partition("\n\n\nstudy = ")
    assert "class Temperature" in model
    assert "def attention_entropy" in model
    assert rest.startswith("ja.Study(")
    (tmp_path / "mine.py").write_text(model)
    (tmp_path / "study.toml").write_text(text)
    planned = ja.Study.read(tmp_path / "study.toml").plan(tmp_path / "run", quick=True)
    assert planned.cells["model.dim"].tolist() == [64, 256]


@pytest.mark.more
def test_the_tutorial_model_learns_the_data(tmp_path, monkeypatch):
    (cell,) = blocks("tutorials/own_data.md", "python")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    exec(compile(cell, "own_data.md", "exec"), names)
    accuracy = names["accuracy"]["mean"]
    assert accuracy.iloc[-1] > accuracy.iloc[0] + 0.1


@pytest.mark.slow
def test_the_paper_figure_and_its_table_are_written(call, tmp_path, monkeypatch):
    (cell,) = blocks("howto/paper_figures.md", "python")
    (command,) = blocks("howto/paper_figures.md", "bash")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    exec(compile(cell, "paper_figures.md", "exec"), names)
    assert (tmp_path / "results" / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert call(*shlex.split(command)[1:])[0] == 0
    assert "toprule" in (tmp_path / "table.tex").read_text()


@pytest.mark.slow
def test_code_on_the_phase_diagram_page_finds_thresholds(tmp_path, monkeypatch):
    (cell,) = blocks("howto/phase_diagrams.md", "python")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    exec(
        compile(cell.replace("seeds=16", "seeds=4").replace('1024, "inf"]', '"inf"]'), "page", "exec"), names
    )
    assert len(names["diagram"].thresholds) == 2


def test_sweep_file_on_the_phase_diagram_page_is_valid(tmp_path):
    text, halton = blocks("howto/sweep_file.md", "toml")
    (tmp_path / "my_study.toml").write_text(f"{text}\n{halton}", encoding="utf-8")
    study = ja.Study.read(tmp_path / "my_study.toml")
    assert study.name == "my_study"
    assert len(study.cells) == 16 * 3
    assert {type(cell.setting.phases[1].steps) for cell in study.cells} == {int}


def test_every_linked_path_exists():
    links = {page: re.findall(r"\]\(((?!http)[^)#]+)\)", text) for page, text in PAGES.items()}
    assert any(links.values())
    broken = [(page, link) for page in links for link in links[page] if not (page.parent / link).exists()]
    assert broken == []


def test_every_link_in_the_readme_has_a_url():
    """Addresses are below the text, so that lines are short in a terminal."""
    text, addresses = re.sub(r"```.*?```", "", README, flags=re.DOTALL), {}
    for name, address in re.findall(r"^\[([^]]+)\]: (\S+)$", text, re.MULTILINE):
        assert (ROOT / address).exists(), name
        addresses[name] = address
    links = re.findall(r"\[([^]]*[A-Za-z][^]]*)\](?![:(])", text)
    assert sorted(links) == sorted(addresses)


@pytest.mark.slow
def test_model_on_the_diagnosis_page_can_be_diagnosed(call, tmp_path, monkeypatch):
    (block,) = [block for block in blocks("howto/diagnose.md", "bash") if block.startswith("python -c")]
    program, command = re.fullmatch(r"python -c '\n(.*)'\n(jaxattn diagnose .*)\n", block, re.DOTALL).groups()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").symlink_to(Path(__file__).parents[1] / "sweeps")
    exec(compile(program, "diagnose.md", "exec"), {})
    assert call(*shlex.split(command)[1:])[0] == 0
    page = (tmp_path / "results" / "diagnosis" / "diagnosis.md").read_text(encoding="utf-8")
    assert page.count("is above the null band") == 5


class Lookalike(np.ndarray):
    """An array with the tensor methods that the tutorial calls."""

    def unflatten(self, axis, sizes):
        axis %= self.ndim
        return self.reshape(*self.shape[:axis], *sizes, *self.shape[axis + 1 :])

    def masked_fill(self, mask, value):
        return np.where(mask, value, self).view(Lookalike)

    def softmax(self, axis):
        weights = np.exp(self - self.max(axis, keepdims=True))
        return weights / weights.sum(axis, keepdims=True)

    def flatten(self, start):
        return self.reshape(*self.shape[:start], -1)

    def numpy(self):
        return np.asarray(self)

    def long(self):
        return self.astype(np.int64)

    def backward(self):
        """Skip training, because the exported arrays do not depend on it."""


def lookalike(seed=0):
    """The part of torch that the tutorial uses, without gradients."""
    rng = np.random.default_rng(seed)

    def randn(*shape):
        return rng.normal(size=shape).view(Lookalike)

    class Linear:
        def __init__(self, inside, outside, bias=True):
            self.weight = randn(outside, inside) / inside**0.5
            self.bias = randn(outside) * float(bias)

        def __call__(self, x):
            return x @ self.weight.T + self.bias

    class Embedding:
        def __init__(self, number, dim):
            self.weight = randn(number, dim)

        def __call__(self, ids):
            return self.weight[ids]

    class Module:
        def __call__(self, *inputs):
            return self.forward(*inputs)

        def parameters(self):
            return []

    nn = SimpleNamespace(
        Linear=Linear,
        Embedding=Embedding,
        Module=Module,
        Parameter=lambda x: x,
        functional=SimpleNamespace(cross_entropy=lambda logits, labels: logits.mean().view(Lookalike)),
    )
    steps = SimpleNamespace(zero_grad=lambda: None, step=lambda: None)
    return SimpleNamespace(
        nn=nn,
        inf=np.inf,
        randn=randn,
        from_numpy=lambda x: x.view(Lookalike),
        einsum=lambda formula, *x: np.einsum(formula, *x, optimize=True).view(Lookalike),
        optim=SimpleNamespace(Adam=lambda parameters, lr: steps),
        no_grad=nullcontext,
    )


@pytest.mark.slow
def test_arrays_on_the_transformer_page_reproduce_its_logits(tmp_path, monkeypatch, capsys):
    """Use torch if it is installed, else a replacement without training."""
    text = "\n".join(blocks("tutorials/transformer.md", "python"))
    trained = importlib.util.find_spec("torch") is not None
    if not trained:
        torch = lookalike()
        monkeypatch.setitem(sys.modules, "torch", torch)
        text = text.replace("range(200)", "range(1)")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").symlink_to(ROOT / "sweeps")
    names: dict = {"__name__": "__main__"}
    exec(compile(text, "transformer.md", "exec"), names)
    assert names["found"].heads == [0, 1, 2, 3]
    assert (tmp_path / "results/classifier/diagnosis.html").stat().st_size > 10_000
    if trained:
        assert any("is above the null band" in line for line in names["found"].verdicts)


@pytest.mark.more
def test_code_on_the_certificate_page_writes_a_certificate_that_the_checker_accepts(tmp_path, monkeypatch):
    (cell,) = blocks("reference/checker.md", "python")
    command, _ = blocks("reference/checker.md", "bash")
    names = {}
    monkeypatch.chdir(tmp_path)
    exec(cell, names)
    done = subprocess.run([sys.executable, *command.split()[1:]], capture_output=True, text=True)
    assert done.stdout.startswith("accepted: gap ≤ ")
    assert names["gap"] < 1e-14


@pytest.mark.more
def test_code_on_the_module_page_trains_three_models(tmp_path, monkeypatch):
    (code,) = blocks("howto/modules.md", "python")
    names = {}
    monkeypatch.chdir(tmp_path)
    exec(code, names)
    for each in names["results"].values():
        final = (
            each.records.query("metric == 'train_accuracy' and phase == 'head'").groupby("seed").value.last()
        )
        assert len(final) == 4
        assert final.mean() > 0.9


STUDY_OF_A_SCRIPT = """
import jaxattn as ja

study = ja.Study(
    name="small", seeds=2, chunk=1, model=ja.models.OneLayer(dim=4),
    data=ja.data.Independent(vocab_size=20, relevant=8, length=6, sequences=32),
    phases=[{"name": "embed", "kind": "one_step", "step_size": 50.0}],
)

if __name__ == "__main__":
"""


@pytest.mark.slow
def test_executor_on_the_page_about_clusters(tmp_path):
    for number, code in enumerate(blocks("howto/clusters.md", "python")):
        script = STUDY_OF_A_SCRIPT + textwrap.indent(code + "print(results.records.seed.nunique())", "    ")
        (tmp_path / "script.py").write_text(script)
        (place := tmp_path / str(number)).mkdir()
        command = [sys.executable, tmp_path / "script.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
        assert (done.returncode, done.stdout.split()[-1:]) == (0, ["2"]), done.stderr


@pytest.mark.more
def test_tables_on_the_page_about_results(tmp_path, monkeypatch):
    code, exponents = blocks("howto/read_results.md", "python")
    monkeypatch.chdir(tmp_path)
    study = ja.Study.read(
        ROOT / "tests" / "sweeps" / "small.toml", axes=["model.dim=[4,8]", "phases.query.step_size=[0.1,0.2]"]
    )
    study.run("results/NAME", quiet=True, report=False)
    names = {"ja": ja}
    *first, last = code.strip().splitlines()
    exec("\n".join(first), names)
    assert eval(last, names).shape == (2, 2)
    exec(exponents.rpartition("power_laws(")[0], names)  # the last call is for a flow


@pytest.mark.more
def test_parameters_on_their_page_are_exported(tmp_path, monkeypatch):
    (code,) = blocks("howto/parameters.md", "python")
    monkeypatch.chdir(tmp_path)
    study = ja.Study.read(ROOT / "sweeps" / "quickstart.toml", ["seeds=4", "phases.query.steps=2"])
    study.run("results/quickstart", quiet=True, report=False)
    names = {}
    exec(code, names)
    stored = load_file("params.safetensors")
    assert {name: x.shape for name, x in stored.items()} == {
        name: getattr(names["params"], name).shape for name in "Epv"
    }
    np.testing.assert_array_equal(stored["p"], names["params"].p)
    np.testing.assert_array_equal(names["embedded"].E, names["params"].E)
    np.testing.assert_array_equal(names["embedded"].p, names["initial"].p)
    assert not np.array_equal(names["embedded"].p, names["params"].p)
    assert not np.array_equal(names["embedded"].E, names["initial"].E)


@pytest.mark.more
def test_slider_along_a_flow_ends_where_the_run_ends(tmp_path, monkeypatch):
    (code,) = blocks("which_phase.md", "python")
    monkeypatch.chdir(tmp_path)
    one_cell = ["data.vocab_size=[50]", "model.dim=[512]"]
    study = ja.Study.read(ROOT / "sweeps" / "margin_convergence.toml", ["seeds=4"], axes=one_cell)
    results = study.run("results/margin_convergence", quiet=True, report=False)
    names = {}
    exec(code, names)
    assert names["page"].read_text(encoding="utf-8").count("<input type=") == 1
    last = results.table().set_index("seed").loc[3]
    assert np.linalg.norm(names["path"].p[-1]) == pytest.approx(last["p_norm"], rel=1e-6)
    assert ja.theory.cosine(names["path"].p[-1], results.params(seed=3).p) == pytest.approx(1, abs=1e-9)


@pytest.mark.more
def test_claim_on_the_page_about_conjectures_is_refuted(call, tmp_path, monkeypatch):
    claim, check = blocks("howto/refute.md", "python")
    (shown,) = blocks("howto/refute.md", "text")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(claim)
    (tmp_path / "mine_check.py").write_text(check)
    code, out, _ = call("refute", "mine.py", "--budget", "60", "--quiet")
    assert code == 0
    assert out.startswith(shown.strip())


def test_every_page_with_python_code_is_tested():
    """Runs of the gallery are long; other tests cover books and attention heads; chips require compilers."""
    elsewhere = {f"howto/{name}.md" for name in ("extending", "books", "accelerators")}
    elsewhere |= {"reference/gallery.md", "notes/accelerators.md", "tutorials/heads.md", "index.md"}
    with_code = {
        page.relative_to(ROOT / "docs").as_posix()
        for page, text in PAGES.items()
        if "```python" in text and page.is_relative_to(ROOT / "docs")
    }
    own = Path(__file__).read_text(encoding="utf-8")
    assert {page for page in with_code - elsewhere if f'blocks("{page}", "python")' not in own} == set()
