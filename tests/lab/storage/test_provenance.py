"""Sources that made a run."""

from jaxattn.lab.storage import provenance


def test_no_note_is_shown_if_the_source_is_unchanged():
    now = provenance.installed()
    assert provenance.version_warning([now]) == provenance.version_warning([now, now]) == ""
    # A commit without code changes is the same source.
    assert provenance.version_warning([now | {"commit": "0" * 40}]) == ""


def test_a_different_source_is_reported():
    now = provenance.installed() | {"commit": "a" * 40}
    other = {"version": "0.0.9", "commit": "b" * 40, "source": "0"}
    assert provenance.version_warning([other]).startswith(
        "made by jaxattn 0.0.9 at commit bbbbbbbbbbbb; this is jaxattn "
    )
    both = provenance.version_warning([provenance.installed(), other])
    assert ", then jaxattn 0.0.9 at commit bbbbbbbbbbbb; this is" in both
    assert provenance.version_warning([provenance.installed() | {"source": "0"}]).endswith(
        ", with changes since"
    )
    assert provenance.version_warning([{"version": None, "commit": None}]).startswith(
        "made by jaxattn of unknown version;"
    )
    assert now["source"] == provenance.installed()["source"]


def test_source_versions_in_old_manifests_are_read():
    old = {"versions": {"jaxattn": "0.0.1"}, "git_commit": "c" * 40}
    assert provenance.package_versions(old) == [{"version": "0.0.1", "commit": "c" * 40}]
    assert "made by jaxattn 0.0.1 at commit cccccccccccc" in provenance.version_warning(
        provenance.package_versions(old)
    )
    assert provenance.package_versions(old | {"made_by": [provenance.installed()]}) == [
        provenance.installed()
    ]
