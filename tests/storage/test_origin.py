"""Which source made a run."""

from jaxattn.storage import origin


def test_a_run_of_the_installed_source_is_not_spoken_of():
    now = origin.installed()
    assert origin.differs([now]) == origin.differs([now, now]) == ""
    # A commit that leaves the code as it is changes nothing.
    assert origin.differs([now | {"commit": "0" * 40}]) == ""


def test_another_source_is_named():
    now = origin.installed() | {"commit": "a" * 40}
    other = {"version": "0.0.9", "commit": "b" * 40, "source": "0"}
    assert origin.differs([other]).startswith(
        "made by jaxattn 0.0.9 at commit bbbbbbbbbbbb; this is jaxattn "
    )
    both = origin.differs([origin.installed(), other])
    assert ", then jaxattn 0.0.9 at commit bbbbbbbbbbbb; this is" in both
    assert origin.differs([origin.installed() | {"source": "0"}]).endswith(", with changes since")
    assert origin.differs([{"version": None, "commit": None}]).startswith("made by jaxattn of no version;")
    assert now["source"] == origin.installed()["source"]


def test_old_manifests_tell_version_and_commit():
    old = {"versions": {"jaxattn": "0.0.1"}, "git_commit": "c" * 40}
    assert origin.makers(old) == [{"version": "0.0.1", "commit": "c" * 40}]
    assert "made by jaxattn 0.0.1 at commit cccccccccccc" in origin.differs(origin.makers(old))
    assert origin.makers(old | {"made_by": [origin.installed()]}) == [origin.installed()]
