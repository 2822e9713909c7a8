"""Settings in effect, as a table of a study and of its results."""

import jaxattn as ja


def study(**changes):
    tables = {
        "name": "table",
        "data": {"kind": "assumption1", "vocab_size": 12, "relevant": 4, "length": 3, "sequences": 8},
        "model": {"kind": "one_layer", "dim": 6},
        "phases": [
            {"kind": "one_step", "name": "embed", "step_size": 3.0},
            {
                "kind": "descent",
                "name": "query",
                "train": ["p"],
                "optimizer": "sgd",
                "step_size": 0.5,
                "steps": 2,
            },
        ],
        "probes": {"per_decade": 0},
    }
    return ja.Study.from_tables(tables | changes)


def test_blocks_axes_and_defaults_are_in_the_table():
    table = study(
        blocks={"wide": {"model": {"dim": 9}}, "adam": {"phases": {"query": {"optimizer": "adam"}}}},
        axes={"phases.embed.step_size": [3.0, 4.0]},
    ).effective_settings()
    assert table.index.tolist() == [0, 1, 2, 3]
    assert table["model.dim"].tolist() == [9, 9, 6, 6]
    assert table["phases.embed.step_size"].tolist() == [3.0, 4.0, 3.0, 4.0]
    assert table["phases.query.optimizer"].tolist() == ["sgd", "sgd", "adam", "adam"]
    assert table["data.vocab_size"].tolist() == [12] * 4
    # Not in the tables of the study, but defaults of the kinds.
    assert table["loss.kind"].tolist() == ["classification"] * 4
    assert table["probes.bins"].tolist() == [20] * 4


def test_a_key_of_another_kind_is_none():
    blocks = {"one": {}, "heads": {"model": {"kind": "multi_head", "heads": 2}}}
    table = study(blocks=blocks).effective_settings()
    assert table["model.kind"].tolist() == ["one_layer", "multi_head"]
    assert table["model.heads"].tolist() == [None, 2]


def test_options_of_the_optimiser_have_the_keys_of_the_sweep_file():
    blocks = {"plain": {}, "fast": {"phases": {"query": {"momentum": 0.5, "nesterov": True}}}}
    table = study(blocks=blocks).effective_settings()
    assert table["phases.query.momentum"].tolist() == [None, 0.5]
    assert table["phases.query.nesterov"].tolist() == [None, True]


def test_results_have_the_table_of_their_study(tmp_path, tables):
    # The programs are those of other tests of the small study.
    own = ja.Study.from_tables(tables(chunk=1))
    results = own.run(tmp_path / "results", quiet=True, report=False)
    assert not (tmp_path / "results" / "report.html").exists()
    expected = own.effective_settings()
    assert results.lookup(0, "phases.query.step_size") == 0.1
    found = ja.load(tmp_path / "results").effective_settings()
    assert found.equals(results.effective_settings())
    assert found.index.equals(expected.index)
    for key in expected:
        # A study file is JSON, in which tuples are lists.
        assert [str(x).replace("(", "[").replace(",)", "]") for x in expected[key]] == list(
            map(str, found[key])
        ), key
