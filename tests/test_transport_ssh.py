"""Boards over ssh, against a real sshd of this machine with keys and configuration of its own."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import resource
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.errors import DeviceError, RunnerError, UsageError
from edgekit.transports import ssh as transport
from edgekit.transports import staged, streams
from tests import shell_runner
from tests.android_fixtures import free_port
from tests.ssh_board import Board, board

__all__ = ["board"]  # a fixture


@pytest.fixture
def link(board: Board) -> Iterator[transport.SshLink]:
    opened = board.connect()
    yield opened
    opened.close()


def leftovers(board: Board) -> list[str]:
    cache = board.base / "cache"
    return [path.name for path in [*board.base.glob("*"), *cache.glob("*")] if path != cache and len(path.name) != 64]


def test_facts_are_this_machines(link: transport.SshLink) -> None:
    facts = link.facts()
    machine = os.uname().machine
    assert (facts.os, facts.abi, facts.platform, facts.runner) == ("linux", machine, f"linux-{machine}", "native")
    assert facts.cores
    assert facts.memory_bytes


def test_a_run_comes_back_whole_and_leaves_only_the_cache(board: Board, link: transport.SshLink, tmp_path: Path) -> None:
    job, result = shell_runner.make(tmp_path, shell="/bin/sh")
    link.execute(job, result, 20)
    assert shell_runner.files(result) == shell_runner.expected()
    assert leftovers(board) == []
    digest = hashlib.sha256((job / "model.bin").read_bytes()).hexdigest()
    inode = (board.base / "cache" / digest).stat().st_ino
    again = tmp_path / "again"
    again.mkdir()
    link.execute(job, again, 20)
    assert (board.base / "cache" / digest).stat().st_ino == inode, "content that is there already was pushed again"
    staged.clear_cache(link)
    assert list(board.base.iterdir()) == []


def test_signals_and_crashes_are_told_apart(board: Board, link: transport.SshLink, tmp_path: Path) -> None:
    for number, kind in ((9, DeviceError), (11, RunnerError)):
        job, result = shell_runner.make(tmp_path / str(number), do=f"kill -{number} $$", shell="/bin/sh")
        with pytest.raises(kind) as caught:
            link.execute(job, result, 20)
        assert f"signal {number}" in str(caught.value)
        assert shell_runner.files(result) == {}
    assert leftovers(board) == []


def test_a_run_that_takes_too_long_is_ended(board: Board, link: transport.SshLink, tmp_path: Path) -> None:
    job, result = shell_runner.make(tmp_path, do=f"echo $$ > '{tmp_path}/pid'; sleep 60", shell="/bin/sh")
    with pytest.raises(DeviceError) as caught:
        link.execute(job, result, 1.5)
    assert caught.value.reason == "hung"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert leftovers(board) == []


def test_a_job_file_with_a_hostile_name_stays_a_name(link: transport.SshLink, board: Board, tmp_path: Path) -> None:
    job, result = shell_runner.make(tmp_path, shell="/bin/sh")
    for name in ("$(touch oops)", "a'b;touch oops", "-rf", "star*"):
        (job / name).write_bytes(name.encode() * 10_000)
    (job / "do").write_text('mkdir "$2/all"; cp -- "$1"/*oops* "$1"/-rf "$1"/star* "$2/all"')
    link.execute(job, result, 20)
    assert sorted(path.name for path in (result / "all").iterdir()) == sorted(["$(touch oops)", "a'b;touch oops", "-rf", "star*"])
    assert not [*tmp_path.rglob("oops"), *board.base.rglob("oops")]


def test_a_symbolic_link_in_the_result_is_not_followed(link: transport.SshLink, tmp_path: Path) -> None:
    job, result = shell_runner.make(tmp_path, do='ln -s /etc/passwd "$2/stolen"', shell="/bin/sh")
    link.execute(job, result, 20)
    assert shell_runner.files(result) == shell_runner.expected()


def test_a_result_larger_than_allowed_is_refused(board: Board, tmp_path: Path) -> None:
    link = board.connect(result_bytes=5000)
    job, result = shell_runner.make(tmp_path, do='head -c 100000 /dev/zero > "$2/big"', shell="/bin/sh")
    with pytest.raises(DeviceError, match="more than 5000 bytes"):
        link.execute(job, result, 20)
    assert shell_runner.files(result) == {}
    assert leftovers(board) == []
    link.close()


@contextlib.contextmanager
def no_file_over(limit_bytes: int) -> Iterator[None]:
    """A disk on which no larger file fits, for what is started in the block as well."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_board_that_talks_without_end_fills_no_disk(board: Board) -> None:
    talk = "head -c 12000000 /dev/zero | tr '\\0' x; echo; echo end"
    with no_file_over(5 << 20), contextlib.closing(board.connect()) as link:
        done = link.shell(f"cat; {talk}; {{ {talk}; }} >&2; exit 3", b"y" * 300_000, 20)
    assert (done.code, len(done.stdout), len(done.stderr)) == (3, streams.TAIL_BYTES, streams.TAIL_BYTES)
    assert done.stdout.endswith("x\nend\n") and done.stderr.endswith("x\nend\n") and "y" not in done.stdout


def test_a_command_that_reads_nothing_takes_its_input_all_the_same(link: transport.SshLink) -> None:
    done = link.shell("exec <&-; echo done", b"y" * 3_000_000, 20)
    assert (done.code, done.stdout) == (0, "done\n")


def test_a_full_disk_here_is_not_the_boards_fault(link: transport.SshLink, tmp_path: Path) -> None:
    job, result = shell_runner.make(tmp_path, do='head -c 3000000 /dev/zero > "$2/big"', shell="/bin/sh")
    with no_file_over(1 << 20), pytest.raises(OSError) as caught:
        link.execute(job, result, 20)
    assert caught.value.errno == errno.EFBIG
    assert shell_runner.files(result) == {}


HEADERS = {
    "sparse map": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "50", "GNU.sparse.name": "a"},
    "less than nothing": {"size": "-5"},
    "more than there is": {"size": "9000"},
    "old sparse": {"GNU.sparse.map": "0,1,9,9", "GNU.sparse.size": "50"},
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_stream_with_hostile_headers_is_a_corrupt_one(header: str, board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board may answer with any bytes; here its tar is a program that does."""
    stream = io.BytesIO()
    with tarfile.open(mode="w", fileobj=stream, format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a")
        member.size, member.pax_headers = 1, HEADERS[header]
        tar.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "answer.tar").write_bytes(stream.getvalue())
    (into := tmp_path / "into").mkdir()
    (board.base / "run").mkdir(parents=True, exist_ok=True)
    with contextlib.closing(board.connect()) as link:
        monkeypatch.setattr(link, "_remote", lambda script: ["cat", str(tmp_path / "answer.tar")])
        with pytest.raises(DeviceError):
            link.pull("run", ["a"], into, 1000)
    assert sum(path.stat().st_size for path in into.iterdir()) == 0
    (board.base / "run").rmdir()


def test_a_key_that_is_not_accepted(board: Board, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    with pytest.raises(DeviceError) as caught:
        board.connect(identity=str(tmp_path / "other"))
    assert (caught.value.reason, bool(caught.value.hint)) == ("unauthorized", True)


def test_a_host_key_that_is_not_known(board: Board, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"UserKnownHostsFile {tmp_path}/none\nGlobalKnownHostsFile {tmp_path}/none\nIdentitiesOnly yes\n")
    with pytest.raises(DeviceError) as caught:
        board.connect(config=str(config))
    assert caught.value.reason == "unauthorized"


def test_a_board_that_is_off() -> None:
    with pytest.raises(DeviceError) as caught:
        transport.connect(f"nobody@127.0.0.1:{free_port()}", {})
    assert caught.value.reason == "powered-off"


@pytest.mark.slow
def test_a_board_that_restarts_in_a_run_is_a_drop_and_the_next_run_passes(board: Board, tmp_path: Path) -> None:
    link = board.connect()
    job, result = shell_runner.make(tmp_path / "first", do=f"touch '{tmp_path}/runs'; sleep 5", shell="/bin/sh")
    import threading

    def restart() -> None:
        while not (tmp_path / "runs").exists():
            time.sleep(0.05)
        board.stop()
        board.start()

    thread = threading.Thread(target=restart)
    thread.start()
    with pytest.raises(DeviceError) as caught:
        link.execute(job, result, 20)
    thread.join()
    assert caught.value.reason == "dropped"
    assert shell_runner.files(result) == {}
    job, result = shell_runner.make(tmp_path / "next", shell="/bin/sh")
    link.execute(job, result, 20)
    assert shell_runner.files(result) == shell_runner.expected()
    assert leftovers(board) == []
    link.close()


def test_options_are_checked() -> None:
    with pytest.raises(UsageError) as caught:
        transport.connect("pi@board", {"identy": "x"})
    assert "identity" in (caught.value.hint or "")
    with pytest.raises(UsageError):
        transport.connect("-oProxyCommand=touch /tmp/oops", {})


def test_a_stream_that_does_not_end_is_cut_off() -> None:
    with subprocess.Popen(["cat", "/dev/zero"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        try:
            with pytest.raises(streams.TooMuchError):
                streams.Reader(process, 5.0, 1 << 20).drain()
        finally:
            streams.abandon(process)
