"""The slider along the flow of a seed, in the report of its study."""

import json
import re

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.explorer.explore_run import explore_run

pytestmark = pytest.mark.more


def flow_study(**changes):
    settings = {
        "name": "flow",
        "seeds": 2,
        "dtype": "float64",
        "data": ja.data.Assumption1(vocab_size=12, relevant=4, length=4, sequences=20),
        "model": ja.models.OneLayer(dim=64),
        "phases": [
            ja.dynamics.OneStep(name="embed", step_size=100.0),
            ja.dynamics.ExactFlow(name="flow", until_norm=1e3),
        ],
    }
    return ja.Study(**settings | changes)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return flow_study().run(tmp_path_factory.mktemp("flow") / "run", quiet=True)


def test_figure_of_a_run_ends_at_the_state_of_the_run(results):
    page = explore_run(results, seed=1)
    last = results.table().set_index("seed").loc[1]
    assert page.data["norm"][-1] == pytest.approx(last["p_norm"], rel=1e-4)
    assert page.data["time"][-1] == pytest.approx(last["log_time"], rel=1e-4)
    p = np.asarray(results.params(seed=1).p, np.float64)
    E = np.asarray(results.params(seed=1).E, np.float64)
    expected = np.sort(E @ p / np.linalg.norm(p))[::-1]
    np.testing.assert_allclose([each["score"][-1] for each in page.data["tokens"]], expected, atol=6e-3)
    assert page.title == "Flow of seed 1"


def test_the_command_adds_the_slider_to_the_report(results, call):
    report = results.directory / "report.html"
    code, out, _ = call("report", str(results.directory), "--flow", "1")
    assert code == 0
    assert out.strip().endswith("report.html")
    text = report.read_text(encoding="utf-8")
    (state,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert "‖p‖ = 1000" in json.loads(state)["readouts"][-1]
    assert text.index("Figures</h2>") < text.index('<figure class="flow-path"')
    assert call("report", str(results.directory))[0] == 0
    assert "flow-path" not in report.read_text(encoding="utf-8")


def test_studies_without_an_exact_flow_are_rejected(tmp_path):
    phases = [ja.dynamics.OneStep(name="embed", step_size=100.0)]
    other = flow_study(phases=phases).run(tmp_path / "run", quiet=True, report=False)
    with pytest.raises(
        ja.InputError, match=r"expected a phase of kind 'exact_flow'.*got one_step and one_layer"
    ):
        explore_run(other, seed=0)
