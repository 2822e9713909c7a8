"""Measure how much slower a study is with results in an S3 bucket, and how many bytes resuming reads.

    python benchmarks/bucket.py --seeds 1000 --out results/benchmarks

The S3 server is moto, which runs in a separate process on the same cores. The study is the same as in
benchmarks/seeds_per_second.py. Programs are compiled before the timing starts.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from unittest import mock

import jax
from seeds_per_second import STUDY

import jaxattn as ja
from jaxattn.lab.engine import devices
from jaxattn.lab.engine import run_study as engine
from jaxattn.lab.engine.monitor import Interrupted
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.storage.memo import Memo

SERVER = Path(__file__).parents[1] / "tests" / "robustness"


class Half(Reporter):
    """Reporter that interrupts a run once more than half of the work is done."""

    def update(self, description, fraction=None, state="", remaining=None):
        if fraction is not None and fraction > 0.5:
            raise Interrupted


def serve(pipe):
    """Run an S3 server until the pipe receives "stop", and answer every other word.

    The answer contains the request counts, the bytes sent and, for "size", the bytes stored. The word
    "forget" resets the counts.
    """
    sys.path.insert(0, str(SERVER))
    from s3_server import Server

    server = Server()
    server.make_bucket("bench")
    pipe.send(server.env)
    while (word := pipe.recv()) != "stop":
        if word == "forget":
            server.requests.clear()
            server.sent.clear()
        held = server.objects("bench") if word == "size" else {}
        pipe.send((dict(server.requests), dict(server.sent), sum(map(len, held.values()))))


def ask(pipe, word):
    """Send a word to the server, and return the request counts, bytes sent and, for "size", bytes stored."""
    pipe.send(word)
    return pipe.recv()


def timed(study, place, reporter=Reporter):
    """Run a study and return the time in seconds."""
    begin = time.perf_counter()
    with reporter(quiet=True) as told, suppress(Interrupted):
        engine.run_study(study, place, command="benchmark", reporter=told)
    return time.perf_counter() - begin


def going_on(study, pipe, root):
    """Measure the time, requests and bytes needed to open a half-finished study with an empty cache."""
    place = Path("s3://bench/half")
    timed(study, place, Half)
    _, _, held = ask(pipe, "size")
    ask(pipe, "forget")
    with mock.patch.dict(os.environ, JAXATTN_CACHE=str(root / "another machine")):
        begin = time.perf_counter()
        Memo(place, print).refresh()
        took = time.perf_counter() - begin
        requests, sent, _ = ask(pipe, "count")
    return {"requests": requests, "read_bytes": sent.get("GET", 0), "held_bytes": held, "s": took}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3, help="pairs, of which the median is reported")
    parser.add_argument("--out", type=Path, default=None, help="folder for bucket.json")
    options = parser.parse_args()
    devices.use_all_cores()
    tables = STUDY.tree | {"seeds": options.seeds}
    study = ja.Study.from_tables(tables | {"model": {"kind": "one_layer", "dim": options.dim}})
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,))
    server.start()
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with mock.patch.dict(os.environ, here.recv(), JAXATTN_CACHE=str(root / "cache")):
            timed(study, root / "compiling")
            for number in range(options.repeats):
                places = {"folder": root / str(number), "bucket": Path(f"s3://bench/{number}")}
                order = ("folder", "bucket") if number % 2 == 0 else ("bucket", "folder")
                ask(here, "forget")
                pairs.append({kind: timed(study, places[kind]) for kind in order})
                requests, _, held = ask(here, "size")
            continued = going_on(study, here, root)
            here.send("stop")
    server.join()
    result = {
        "seeds": options.seeds,
        "dim": options.dim,
        "pairs_s": pairs,
        "more": statistics.median(pair["bucket"] / pair["folder"] - 1 for pair in pairs),
        "requests": requests,
        "held_bytes": held,
        "going_on": continued,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "jax": jax.__version__,
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "bucket.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
