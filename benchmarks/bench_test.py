"""The whole of `edgekit test` beside the bare minimum by hand, on one virtual Android device and one adb server.

    python benchmarks/bench_test.py [--bundle B] [--rounds 3] [--runs 5]

By hand: `adb push` of the job folder, `adb shell` of the same runner with the same iterations, `adb pull` of what it wrote; no check of anything, no
report, no clean-up, and the job folder lies ready. The two take turns, so that both meet the same load of the machine. `first` is a test whose files
are not on the device yet, `again` is one whose large files still lie in the cache there.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import measure
from edgekit import bundle, runner
from edgekit.runner import RunOptions
from edgekit.transports import adb as transport
from edgekit.transports import staged
from edgekit.virtual import android
from edgekit.virtual.android import RunningDevice
from tests.android_fixtures import Adb, private_adb

MODEL = "tests.zoo.models:efficientnet_lite0"
LIMIT = 1.15
HAND = "/data/local/tmp/hand"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, help="instead of EfficientNet-Lite0, packaged here as fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5, help="timed runs; three more warm up, and each golden sample is run once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, private_adb("bundled", Path(folder)) as server, android.device() as phone:
        server.connect(phone)
        made = arguments.bundle or package(Path(folder))
        compare(server, phone, made, Path(folder), arguments.runs, arguments.rounds)


def package(folder: Path) -> Path:
    """EfficientNet-Lite0 for Android, judged on random inputs."""
    command = [sys.executable, "-m", "edgekit", "package", MODEL, "--target", "android-arm64", "--precision", "fp32", "--out", str(folder)]
    measure.run([*command, "--calibration", "random"])
    return next(folder.glob("*.edgekit"))


def compare(server: Adb, phone: RunningDevice, made: Path, folder: Path, runs: int, rounds: int) -> None:
    """Print a line for `first` and one for `again`."""
    link = transport.connect(phone.address, {"server_port": server.port})
    job = folder / "job"
    job.mkdir()
    # no time limit and the fewest runs that can be steady: both sides do the same number of runs, however slow the machine is
    options = RunOptions(warmup_runs=3, min_runs=runs, max_seconds=3600)
    with bundle.open(made) as opened:
        runner.write_job(opened, job, link.facts(), options)
    ours = [sys.executable, "-m", "edgekit", "test", str(made), "--device", f"adb:{phone.address}?server_port={server.port}"]
    ours += ["--runs", str(runs), "--seconds", "3600", "--warmup", "3", "--json", str(folder / "report.json")]
    count = itertools.count()
    for name, before in (("first", lambda: staged.clear_cache(link)), ("again", lambda: None)):
        turns = [(by_hand(server, phone, job, folder / f"pulled{next(count)}"), whole_test(before, ours)) for _ in range(rounds + 1)][1:]
        hand_s, test_s = (statistics.median(turn[side] for turn in turns) for side in (0, 1))
        print(f"{name}: by hand {hand_s:.2f} s, edgekit test {test_s:.2f} s, ratio {test_s / hand_s:.3f} (aim: at most {LIMIT})", flush=True)


def by_hand(server: Adb, phone: RunningDevice, job: Path, pulled: Path) -> float:
    """Seconds of push, run and pull."""
    server.on(phone, "shell", f"rm -rf {HAND}")
    start = time.perf_counter()
    run = f"mkdir {HAND}/result && cd {HAND} && LD_LIBRARY_PATH=. ./runner . result"
    for arguments in (("push", str(job), HAND), ("shell", run), ("pull", f"{HAND}/result", str(pulled))):
        done = server.on(phone, *arguments, timeout_s=3600)
        if done.returncode:
            raise SystemExit(f"adb {' '.join(arguments)}: {done.stderr.decode()}")
    return time.perf_counter() - start


def whole_test(before: Callable[[], None], command: list[str]) -> float:
    """Seconds of one `edgekit test`; how it judges is not asked here."""
    before()
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return seconds


if __name__ == "__main__":
    main()
