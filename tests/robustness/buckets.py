"""Attacks on results folders in a bucket: kills, failing requests, two writers, and damaged objects.

Another machine is a process with another host name and an empty cache. After each attack, the objects to
which records refer are compared with their checksums, without code of the package.
"""

import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import damages
import folders
import kills
from bucket_scene import (
    Fault,
    Process,
    Scene,
    arithmetic,
    check_objects,
    no_fault,
    progress_of,
    records_of,
)
from s3_server import FAULTS, REFUSED, Server

import jaxattn as ja
from jaxattn.lab.engine import attempt as attempts
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import objects
from jaxattn.lab.storage.folder import results_folder

ENDLESS = ("denied", "expired")
DAMAGES = ("a bit", "cut off", "emptied", "deleted", "another object")


def _kill(scene: Scene, place: Path) -> str:
    """Kill a run up to four times, and run it again on the same or on another machine."""
    cache, host, killed = scene.cache(), "a", 0
    finished: dict[str, bytes] = {}
    progress: dict[str, tuple[int, int]] = {}
    for times_left in reversed(range(scene.drawn.randint(2, 5))):
        process = Process(scene, place, cache, host)
        if times_left:
            process.kill_sometime(scene)
        line = process.end()
        scene.server.fault = no_fault
        assert line in ("", "killed"), line
        killed += line == "killed"
        check_objects(there := scene.objects(place))
        now, states = records_of(there, whole=True), progress_of(there)
        assert finished.items() <= now.items(), "a finished batch was computed again"
        assert all(states.get(key, (0, 0)) >= state for key, state in progress.items()), "a state was lost"
        finished, progress = now, states
        if not line:
            break
        if scene.drawn.random() < 0.5:
            cache, host = scene.cache(), f"{host}a"
    where = "on several machines" if len(host) > 1 else "on one machine"
    return f"killed {killed} times {where}, same bits{scene.check_end(place)}"


def _request(scene: Scene, place: Path) -> str:
    """Let some requests fail, and run the study again if it stops."""
    fault = scene.drawn.choice(FAULTS + ENDLESS)
    is_endless = fault in ENDLESS or (fault != "late" and scene.drawn.random() < 0.3)
    length = float("inf") if is_endless else scene.drawn.randint(1, 4)
    cache, host = scene.cache(), "a"
    scene.server.fault = Fault(fault, scene.drawn.randint(1, scene.length[1]), length)
    line = Process(scene, place, cache, host).end()
    scene.server.fault = no_fault
    if line:
        assert "s3://" in line, line
        assert "\n" not in line, line
        assert (fault not in REFUSED or fault in ("500", "slow down")) or "credentials" in line, line
        check_objects(there := scene.objects(place))
        if scene.drawn.random() < 0.5:
            cache, host = scene.cache(), "b"
        assert not Process(scene, place, cache, host).end()
        finished = records_of(there, whole=True)
        assert finished.items() <= records_of(scene.objects(place), whole=True).items(), "computed again"
    shown = "one line, then the same bits" if line else "same bits"
    return f"{fault}{' to the end' if is_endless else ''}: {shown}{scene.check_end(place)}"


def _writers(scene: Scene, place: Path) -> str:
    """Start two runs at once, on one or two machines, with the same or other seeds, and kill one at times."""
    every, is_killed = (3, scene.drawn.choice([2, 3, 3, 4])), scene.drawn.random() < 0.5
    is_shared = scene.drawn.random() < 0.5
    own = scene.cache()
    machines = [(own, "a", every[0]), (own, "a", every[1]) if is_shared else (scene.cache(), "b", every[1])]
    processes = []
    for cache, host, seeds in machines:
        processes.append(Process(scene, place, cache, host, seeds))
        time.sleep(scene.drawn.choice([0.0, 0.0, scene.drawn.uniform(0, scene.length[0])]))
    if is_killed:
        processes[0].kill_sometime(scene)
    lines = [process.end() for process in processes]
    scene.server.fault = no_fault
    assert set(lines) <= {"", "killed"}, lines
    for line, (cache, host, seeds) in zip(lines, machines, strict=True):
        if line:
            assert not Process(scene, place, cache, host, seeds).end()
    before = records_of(scene.objects(place), whole=True)
    assert len(before) == max(every)
    for seeds in every:
        assert not Process(scene, place, scene.cache(), "c", seeds).end()
        note = scene.check_end(place, seeds)
    assert records_of(scene.objects(place), whole=True) == before, "a run was computed again"
    where = "one cache" if is_shared else "two machines"
    killed = ", one killed" if "killed" in lines else ""
    return f"{where}{', other seeds' if every[0] != every[1] else ''}{killed}: same bits{note}"


def _damage(scene: Scene, place: Path) -> str:
    """Damage an object of a finished study; read it, and run it again on the same or on another machine."""
    own = scene.cache()
    assert not Process(scene, place, own, "a").end()
    there, kind = scene.objects(place), scene.drawn.choice(DAMAGES)
    group = scene.drawn.choice(["run.json", "records.parquet", "tokens.parquet", "checkpoint", "study.json"])
    name = scene.drawn.choice(sorted(name for name in there if group in name.split("/") and there[name]))
    (path := own / "object").write_bytes(there[name])
    bucket, _, folder = str(place).removeprefix("s3:/").partition("/")
    if kind == "another object":
        others = [x for other, x in there.items() if other.split("/")[-1] == name.split("/")[-1]]
        path.write_bytes(scene.drawn.choice(others))
    else:
        damages._damage(kind, path, own / "outside", scene.drawn)
    if path.exists():
        scene.server.put(bucket, f"{folder}/{name}", path.read_bytes())
    else:
        objects.Objects(place).delete([name])
    told = _read(scene, place)
    line = Process(scene, place, own if scene.drawn.random() < 0.5 else scene.cache(), "a").end()
    assert not line or "\n" not in line, line
    note = ""
    if _read(scene, place):
        # Errors advise to delete the damaged file or checkpoint.
        batch = name.rpartition("/")[0].partition("/checkpoint")[0]
        objects.Objects(place).delete(
            [x for x in there if x.startswith(f"{batch}/checkpoint/")] + [name] * bool(line)
        )
        assert not Process(scene, place, scene.cache(), "b").end()
        note = " after deleting it"
    assert not _read(scene, place)
    shown = "reported, repaired" if told else "of no consequence"
    return f"{group}, {kind}: {shown}{note}{scene.check_end(place)}"


def _read(scene: Scene, place: Path) -> str:
    """Read a folder on a new machine; return the errors, and check that all numbers are right."""
    with mock.patch.dict(os.environ, JAXATTN_CACHE=str(scene.cache())):
        expected = scene.expected[len(folders.SEEDS)]
        told = folders.refusal(lambda: folders.check_tables(place, expected))
        for seed in folders.SEEDS:
            told += folders.refusal(
                lambda seed=seed: folders.check_params(
                    ja.load(place).params(seed=seed), expected.params[seed]
                )
            )
        try:
            return told + "".join(verify(results_folder(place).fetch("tables", "checkpoints")))
        except (ja.InputError, ja.RunError) as error:
            return told + str(error)


# The attacks, and the fraction of each kind.
KINDS = {
    "kill": (_kill, 0.35),
    "request": (_request, 0.3),
    "writers": (_writers, 0.15),
    "damage": (_damage, 0.2),
}


def attack(count: int, seed: int, only: tuple[str, ...] = tuple(KINDS)) -> dict[str, int]:
    """Attack results folders in buckets `count` times, each time in a new bucket.

    Returns:
        Number of times of each outcome.

    Raises:
        AssertionError: numbers differ, a finished batch was computed again, or a process raised.
    """
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as name, kills._keeping_programs(Path(name)):
        kills.FRESH.set_forkserver_preload(["bucket_scene"])
        server, root = Server(), Path(name).resolve()
        with server.used():
            expected = {}
            with mock.patch.object(attempts, "run_batch", arithmetic):
                for seeds in (2, 3, 4):
                    folders.run(folder := root / f"undisturbed-{seeds}", folders.study(seeds=seeds))
                    with mock.patch.object(folders, "SEEDS", range(seeds)):
                        expected[seeds] = folders.content(folder)
            scene = Scene(server, root, expected, (0.0, 0), random.Random(), outcomes)
            scene = scene._replace(length=_length(scene))
            for kind in only:
                number_of = max(1, round(KINDS[kind][1] * count))
                for number in range(number_of):
                    case = f"{kind}, seed {seed}, number {number}"
                    server.make_bucket(bucket := f"{kind}-{number}")
                    scene.drawn.seed(case)
                    try:
                        found = KINDS[kind][0](scene, Path(f"s3://{bucket}/results/small"))
                    except Exception as error:
                        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
                    outcomes[f"{kind}: {found}"] += 1
                    print(f"{case} of {number_of}: {found}", file=sys.stderr, flush=True)
        server.close()
    return dict(sorted(outcomes.items()))


def _length(scene: Scene) -> tuple[float, int]:
    """Return the duration and the number of requests of an undisturbed run in a bucket."""
    for number in range(2):  # The first process starts the server of new processes.
        scene.server.make_bucket(bucket := f"undisturbed-{number}")
        scene.server.requests.clear()
        begin, place = time.monotonic(), Path(f"s3://{bucket}/results/small")
        assert not Process(scene, place, scene.cache(), "a").end()
        seconds = time.monotonic() - begin
    assert not scene.check_end(place)
    return seconds, sum(scene.server.requests.values())
