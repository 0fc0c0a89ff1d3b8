"""Transfer rates of the adb transport beside the adb program's own, on the virtual Android device and one server.

    python benchmarks/bench_transfer.py [--mib 256] [--rounds 5] [--adb system|bundled]

The two take turns in each round, so that both meet the same load of the machine; the median of the rounds is printed, with the ratio. Printed too:
the whole of a job (push, verify, run, pull, clean up) against the same by hand with the adb program, without any check.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgekit.transports import adb as transport
from edgekit.transports.staged import Upload
from edgekit.virtual import android
from tests import shell_runner
from tests.android_fixtures import Adb, private_adb

SCRATCH = "/data/local/tmp/edgekit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--adb", choices=("system", "bundled"), default="bundled")
    parser.add_argument("--run-s", type=float, default=3.0, help="how long the runner of the whole job takes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, private_adb(arguments.adb, Path(folder)) as server, android.device() as phone:
        server.connect(phone)
        link = transport.connect(phone.address, {"server_port": server.port})
        link.shell(f"mkdir -p {SCRATCH}", b"", 10)
        compare_files(server, link, Path(folder), arguments.mib << 20, arguments.rounds)
        compare_jobs(server, link, Path(folder), arguments.run_s, arguments.rounds)


def compare_files(server: Adb, link: transport.AdbLink, folder: Path, size_bytes: int, rounds: int) -> None:
    source, back = folder / "big", folder / "back"
    source.write_bytes(os.urandom(1 << 20) * (size_bytes >> 20))
    back.mkdir()
    serial = ("-s", link.device)
    theirs = f"{SCRATCH}/theirs"
    ours = partial(link.push, [Upload(source, "ours", 0o644)])
    report("push", size_bytes, ours, partial(adb, server, *serial, "push", str(source), theirs), rounds)
    ours = partial(link.pull, "", ["ours"], back, size_bytes)
    report("pull", size_bytes, ours, partial(adb, server, *serial, "pull", theirs, str(back / "theirs")), rounds)
    link.shell(f"rm -f {SCRATCH}/ours {SCRATCH}/theirs", b"", 10)


def compare_jobs(server: Adb, link: transport.AdbLink, folder: Path, run_s: float, rounds: int) -> None:
    count = iter(range(1000))

    def ours() -> None:
        job, result = shell_runner.make(folder / f"job{next(count)}", do=f"sleep {run_s}", model_bytes=8_000_000)
        link.execute(job, result, 60)

    def by_hand() -> None:
        job, result = shell_runner.make(folder / f"job{next(count)}", do=f"sleep {run_s}", model_bytes=8_000_000)
        (job / "runner").chmod(0o755)
        serial, place = ("-s", link.device), "/data/local/tmp/hand"
        adb(server, *serial, "push", str(job), place)
        adb(server, *serial, "shell", f"mkdir {place}/result; cd {place} && ./runner . result")
        adb(server, *serial, "pull", f"{place}/result", str(result / "pulled"))
        adb(server, *serial, "shell", f"rm -rf {place}")

    mine, theirs = alternate(ours, by_hand, rounds)
    print(f"whole job of {run_s:g} s: edgekit {mine:.2f} s, by hand {theirs:.2f} s, ratio {mine / theirs:.3f}")


def report(name: str, size_bytes: int, ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> None:
    mine_s, theirs_s = alternate(ours, theirs, rounds)
    mine, other = size_bytes / mine_s / 1e6, size_bytes / theirs_s / 1e6
    print(f"{name}: edgekit {mine:.0f} MB/s, adb program {other:.0f} MB/s, ratio {mine / other:.2f}")


def alternate(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of two things done in turns, after one turn that is not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for work, kept in zip((first, second), times, strict=True):
            start = time.perf_counter()
            work()
            kept.append(time.perf_counter() - start)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def adb(server: Adb, *arguments: str) -> None:
    done = server.run(*arguments)
    if done.returncode:
        raise SystemExit(f"adb {' '.join(arguments)}: {done.stderr.decode()}")


if __name__ == "__main__":
    main()
