"""Recipes for clusters, tested as far as possible without a cluster."""

import itertools
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from jaxattn.lab.cli.options import read_shard
from jaxattn.lab.storage.objects import address_text

RECIPES = Path(__file__).parents[1] / "docs" / "howto" / "recipes"
# Relevant options of sbatch from its manual; those with = take a value.
SBATCH = {
    "--job-name=", "--array=", "--ntasks=", "--gpus-per-task=", "--time=", "--requeue", "--signal=",
    "--open-mode=", "--output=", "--nodes=", "--partition=", "--mem=", "--cpus-per-task=",
}  # fmt: skip
# Replacements of srun and scontrol, and of jaxattn when srun runs it.
STAND_INS = {
    "srun": 'printf "%s\\n" "$@" > "$CALLS/srun"; exit $STATUS',
    "scontrol": 'printf "%s\\n" "$@" > "$CALLS/scontrol"',
}


def test_sbatch_accepts_the_options_in_the_recipe():
    lines = (RECIPES / "slurm.sh").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    given = [word for line in lines if line.startswith("#SBATCH ") for word in shlex.split(line)[1:]]
    assert {re.sub(r"=.*", "=", word) for word in given} <= SBATCH
    # sbatch reads no options after the first command.
    first = next(k for k, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    signal = next(word for word in given if word.startswith("--signal"))
    assert re.fullmatch(r"--signal=TERM@\d+", signal)


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (2, False), (130, True)])
def test_slurm_recipe_runs_a_shard_and_requeues_stopped_jobs(tmp_path, status, requeued):
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "CALLS": str(tmp_path / "calls"),
        "STATUS": str(status),
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_ARRAY_TASK_COUNT": "8",
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_JOB_ID": "80",
    }
    (tmp_path / "calls").mkdir()
    script = [str(RECIPES / "slurm.sh"), "sweep.toml", "s3://bucket/name"]
    assert subprocess.run(["bash", "-n", script[0]]).returncode == 0
    assert subprocess.run(["bash", *script], env=env).returncode == status
    called = (tmp_path / "calls" / "srun").read_text().split("\n")
    words = ["jaxattn", "run", "sweep.toml", "--out", "s3://bucket/name", "--shard", "4/8", "--quiet"]
    assert called[1:-1] == words
    again = tmp_path / "calls" / "scontrol"
    assert again.exists() == requeued
    assert not requeued or again.read_text() == "requeue\n77_3\n"


def test_kubernetes_job_is_valid_and_does_not_share_volumes(tmp_path):
    yaml, validate = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    job = yaml.safe_load((RECIPES / "kubernetes.yaml").read_text(encoding="utf-8"))
    for version in ("1.31", validate.latest_version()):
        validate.validate(job, version, strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate(job | {"spec": job["spec"] | {"completion": 8}}, "1.31", strict=True)
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert all(set(volume) - {"name"} <= {"configMap", "emptyDir"} for volume in pod["volumes"])
    (container,) = pod["containers"]
    (tmp_path / "jaxattn").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "jaxattn").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": "7"}
    command = ["/bin/sh", *container["command"][1:], *container["args"]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[:2] == ["run", "/sweep/sweep.toml"]
    given = dict(itertools.pairwise(words))
    assert address_text(given["--out"]) == "s3://BUCKET/NAME"
    assert read_shard(given["--shard"]) == (8, spec["completions"])
    assert spec["completions"] == spec["parallelism"]
