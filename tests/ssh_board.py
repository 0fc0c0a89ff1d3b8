"""A board over ssh: a real sshd of this machine with keys and configuration of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.transports import ssh as transport
from tests.android_fixtures import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Board:
    """An sshd on a loopback port; its home folder is this user's, its work folder `base`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.base = folder, free_port(), folder / "base's here"
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized_keys")
        lines = [f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/authorized_keys"]
        lines += ["StrictModes no", "UsePAM no", f"PidFile {folder}/pid", "PasswordAuthentication no", "PermitRootLogin yes"]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        key = (folder / "host.pub").read_text().split()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n")
        (folder / "config").write_text(f"UserKnownHostsFile {folder}/known_hosts\nIdentitiesOnly yes\n")
        self.start()

    def start(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.process = subprocess.Popen([str(SSHD), "-D", "-f", str(self.folder / "sshd_config")], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while subprocess.run(["ssh-keyscan", "-p", str(self.port), "127.0.0.1"], capture_output=True, check=False).stdout == b"":
            assert time.monotonic() < deadline, "sshd does not listen"

    def stop(self) -> None:
        """Power off: the listener ends, and so do the sessions of its connections."""
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False).stdout.split()
        self.process.kill()
        self.process.wait()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), 9)

    def options(self, **more: object) -> dict[str, object]:
        own = {"config": str(self.folder / "config"), "identity": str(self.folder / "user"), "base": str(self.base)}
        return {**own, "reconnect_s": 5, "retries": 0, **more}

    def connect(self, **more: object) -> transport.SshLink:
        return transport.connect(f"127.0.0.1:{self.port}", self.options(**more))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    if not SSHD or not shutil.which("ssh"):
        reason = "there is no OpenSSH server here: apt-get install -y openssh-server"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    started = Board(tmp_path_factory.mktemp("sshd"))
    yield started
    started.stop()
