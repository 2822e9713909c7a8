"""The command that checks this machine."""

from jaxattn.lab.engine import devices, machine, memory


def test_doctor_passes_on_this_machine(tmp_path):
    findings = {finding.name: finding for finding in machine.examine(tmp_path / "compiled")}
    assert findings["float64"].state == "ok"
    assert "jax " in findings["packages"].found
    assert str(tmp_path) in findings["compiled programs"].found
    assert all(finding.state in ("ok", "note") for finding in findings.values())


def test_exception_in_a_check_is_reported_instead_of_raised(tmp_path, monkeypatch):
    def broken():
        raise RuntimeError("no device\nat all")

    monkeypatch.setattr(machine, "_devices", broken)
    findings = {finding.name: finding for finding in machine.examine(tmp_path)}
    assert findings["devices"] == ("devices", "broken", "RuntimeError: no device")


def test_device_is_not_initialised_if_that_would_crash_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "address_space", lambda: 2**30)
    findings = machine.examine(tmp_path)
    assert [finding.name for finding in findings] == ["python", "packages", "address space"]
    assert findings[-1].state == "broken"


def test_known_jaxlib_problem_is_reported_as_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "known_bug", lambda platform: f"trouble on a {platform}")
    findings = {finding.name: finding for finding in machine.examine(tmp_path)}
    assert findings["jaxlib"] == ("jaxlib", "note", "trouble on a cpu")
