import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.base import silent
from jaxattn.core.errors import UserCodeError
from jaxattn.lab.cli.corpus import describe_data
from jaxattn.lab.engine.programs import seed_keys
from jaxattn.lab.study.import_paths import ImportPaths


@pytest.fixture
def texts(tmp_path, tables):
    """Build a study of forty short texts."""
    rows = [{"text": f"{'good' if i % 2 else 'bad'} film {i % 5}", "label": i % 2} for i in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**settings):
        return ja.Study.from_tables(
            tables(data={"kind": "jsonl", "path": str(path)} | settings, figures=["importance"])
        )

    return make


def test_data_command_describes_the_validation_split(texts, study):
    wanted = texts(validation=0.25)
    loaded = wanted.base.data.load(silent)
    assert loaded.splits.validation.num_examples == 10
    assert loaded.splits.train.num_examples == 30
    assert loaded.splits.test is None
    ((_, sizes), *_) = describe_data(wanted, 1, silent)
    assert sizes["split"].tolist() == ["train", "validation"]
    assert texts().base.data.load(silent).splits.validation is None
    assert wanted.base.data.shared
    assert not study().base.data.shared


@pytest.mark.more
def test_class_names_are_used_and_may_change_on_resume(texts, tmp_path):
    fruit, animals = ["apple", "pear"], ["ape", "bear"]
    ((_, sizes), *_) = describe_data(texts(class_names=fruit), 1, silent)
    assert sizes["label apple"].tolist() == sizes["label pear"].tolist() == ["50.0 %"]
    before = texts().run(tmp_path / "run", quiet=True)
    assert before.class_names(0) == ("0", "1")
    for names in (fruit, animals):
        results = texts(class_names=names).run(tmp_path / "run", quiet=True)
        assert results.manifest["batches"] == before.manifest["batches"]
        assert results.records.equals(before.records)
        assert set(results.top_tokens(phase="query")["class"]) >= {*names}
        assert f"class {names[1]}" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_error_in_custom_data_shows_its_line(tables, tmp_path):
    (tmp_path / "own.py").write_text("def data():\n    raise KeyError('none')\n", encoding="utf-8")
    wanted = ja.Study.from_tables(tables(data={"kind": "own.py:data"}), ImportPaths(tmp_path))
    with pytest.raises(UserCodeError, match=r"^data: KeyError in data, line 2 of "):
        describe_data(wanted, 1, silent)


@pytest.mark.more
def test_data_command_describes_a_custom_corpus(study):
    tables = describe_data(study("own"), 3, silent)
    (_, sizes), *_ = tables
    assert sizes["split"].tolist() == ["train", "test"]
    assert sizes["sequences"].tolist() == ["12", "8"]
    ((_, shared), *_) = describe_data(study("own", data="mine.py:fixed"), 3, silent)
    assert shared["split"].tolist() == ["train"]


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.more)])
@pytest.mark.more
def test_recommended_step_sizes_produce_the_stated_values(tables, classes):
    """From E = 0 the one-step law is exact for any d."""
    data = {"kind": "independent", "vocab_size": 20, "relevant": 6, "length": 5, "sequences": 60}
    loss = "logistic" if classes == 2 else "cross_entropy"
    wanted = ja.Study.from_tables(tables(data=data | {"num_classes": classes}, loss=loss, figures=[]))
    ((title, table),) = [
        x for x in describe_data(wanted, 1, silent) if x[0].startswith("One step on E, d = ")
    ]
    assert (
        f"start with step_size = {table['step_size'][1]:g}; compare larger values, which can train p in "
        "fewer steps. Steps of this order can make E·p U-shaped" in title
    )
    corpus = jax.jit(wanted.base.data.draw)(seed_keys([0])[0][0]).train
    v = jnp.eye(4)[0] if classes == 2 else jnp.eye(4)[:, :classes]
    params = ja.models.one_layer.Params(E=jnp.zeros((20, 4)), p=jnp.zeros(4), v=v)
    difference = np.asarray(ja.data.posterior_difference(corpus)).reshape(20, -1)
    probes = wanted.base.probes
    important = (np.abs(difference) >= 0.5).any(1) & (
        np.asarray(ja.data.token_counts(corpus)) >= probes.min_count
    )
    assert f"({important.sum()} with |posterior difference| ≥ 0.5, at least {probes.min_count} occ" in title
    dim = wanted.base.model.dim

    @jax.jit
    def step(step_size):
        moved = ja.dynamics.one_step(params, corpus, step_size=step_size)
        return moved.E @ v, ja.models.one_layer.outputs(moved, corpus)

    for step_size, size, spread, ratio, logits in table.to_numpy():
        values, of_sequences = map(np.asarray, step(step_size))
        values = values.reshape(20, -1)
        assert size == pytest.approx(np.median(np.abs(values[important]).max(1)), rel=1e-4)
        rest = np.hypot(dim**-0.5, np.sqrt(values[~important].var(axis=0).mean()))
        assert (spread, ratio) == pytest.approx((rest, size / rest), rel=1e-4)
        assert logits == pytest.approx(np.sqrt(np.mean(of_sequences**2)), rel=1e-4)


@pytest.mark.more
def test_no_step_size_is_recommended_if_no_token_is_important(tables):
    wanted = ja.Study.from_tables(tables(probes={"min_count": 10**6}, figures=[]))
    titles = [title for title, _ in describe_data(wanted, 1, silent)]
    assert "One step on E: no advice, because no important token (|posterior difference| ≥ 0.5, " in titles[2]


def test_missing_step_size_advice_suggests_a_min_count(texts):
    """Each of the words "good" and "bad" occurs twenty times."""
    study = texts()
    table = study.tree | {"probes": {"min_count": 21}}
    titles = [title for title, _ in describe_data(ja.Study.from_tables(table), 1, silent)]
    (title,) = [title for title in titles if title.startswith("One step on E: no advice")]
    assert title.endswith("; set probes.min_count = 20")
