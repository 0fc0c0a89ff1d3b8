"""Linux boards over the system's OpenSSH client: `ssh:USER@HOST[:PORT]` or a host of ~/.ssh/config. Files travel as tar streams."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from edgekit.errors import FULL, DeviceError, MissingPackageError, UsageError
from edgekit.transports import Facts, probe, staged, streams
from edgekit.transports.failures import Policy, Retry, failure, last_line, parse_options, reason_of, too_much
from edgekit.transports.staged import Completed, Upload

FORM = "ssh:USER@HOST[:PORT]"
BASE = ".cache/edgekit"
SSH_FAILED = 255
_OUTER = 'sh -c "$0"; exit $?'
_BY_TEXT = (
    ("permission denied", "unauthorized"),
    ("host key verification failed", "unauthorized"),
    ("remote host identification has changed", "unauthorized"),
    ("too many authentication failures", "unauthorized"),
    ("could not resolve hostname", "not-found"),
    ("connection refused", "powered-off"),
    ("no route to host", "powered-off"),
    ("connection timed out", "powered-off"),
    ("operation timed out", "powered-off"),
    ("bad configuration option", "failed"),
)
_PLACE = re.compile(r"(?P<host>(?:[A-Za-z0-9_][\w.-]*@)?(?:[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:.]+\]))(?::(?P<port>[0-9]{1,5}))?")
_BROKEN = (OSError, EOFError, tarfile.TarError, ValueError, LookupError, ArithmeticError)
"""What tarfile raises for a stream that is no archive: headers hold numbers and maps as text."""
_TAR_BYTES = 16 << 20
"""What headers and padding of a tar stream may take beside the files."""
_HINTS = {
    "unauthorized": "edgekit never asks for a password: log in once by hand to accept the host's key, and install yours with ssh-copy-id",
    "not-found": "check the host's name",
}


class SshOptions(Policy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`program` is the ssh to use, `config` a configuration file instead of ~/.ssh/config, `identity` a private key."""

    program: str = "ssh"
    config: str = ""
    identity: str = ""


def check(place: str) -> None:
    """Refuse what is not `USER@HOST[:PORT]`. Raises `UsageError`."""
    _parts(place)


def connect(address: str, options: Mapping[str, Any]) -> SshLink:
    """Log in to `USER@HOST[:PORT]` without asking anything. Raises `DeviceError`, `UsageError`, `MissingPackageError` without an ssh client."""
    chosen = parse_options(options, SshOptions, "ssh")
    place = _parts(address)
    if not shutil.which(chosen.program):
        raise MissingPackageError(f"there is no {chosen.program} here", "install the OpenSSH client")
    link = SshLink(address, place["host"], place["port"] or "", chosen)
    try:
        link.log_in()
    except BaseException:
        link.close()
        raise
    return link


def _parts(place: str) -> re.Match[str]:
    found = _PLACE.fullmatch(place)
    if not found:
        raise UsageError(f"ssh:{place} is not ssh:USER@HOST or ssh:USER@HOST:PORT", "a host of ~/.ssh/config works too: ssh:NAME")
    return found


class SshLink:
    """A board behind one shared ssh connection. `retries` lists what had to be done again."""

    def __init__(self, address: str, host: str, port: str, policy: SshOptions) -> None:
        self.device = address
        self.base = policy.base or BASE
        self.policy = policy
        self.retries: list[Retry] = []
        self._folder = Path(tempfile.mkdtemp(prefix="ek-ssh-"))
        self._host = host.replace("[", "").replace("]", "")
        self._port = port

    def facts(self) -> Facts:
        """What the board says of itself, in one round trip. Raises `DeviceError`."""
        done = staged.retried(self, "facts", lambda: self.shell(probe.SCRIPT, b"", self.policy.stall_s))
        return probe.read(done.stdout, self.device, {})

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a native job folder. See `staged.execute` for what is raised."""
        staged.execute(self, job, result, timeout_s)

    def close(self) -> None:
        """End the shared connection."""
        if (self._folder / "control").exists():
            command = [*self._client(), "-O", "exit", "--", self._host]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=5, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def log_in(self) -> None:
        """Open the shared connection that every command then uses. Raises `DeviceError`."""
        log = self._folder / "log"
        log.unlink(missing_ok=True)
        # The master outlives this command and keeps its standard error: it must not be a pipe that somebody reads to the end.
        command = [*self._client(), "-M", "-N", "-f", "-E", str(log), "-o", "ControlPersist=yes", "--", self._host]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=self.policy.stall_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise failure(self.device, "hung", f"no login within {self.policy.stall_s:g} s") from error
        if done.returncode:
            raise self._failure(log.read_text("utf-8", "replace") if log.exists() else "", "logging in")

    def shell(self, script: str, stdin: bytes, timeout_s: float) -> Completed:
        """Run a script by the board's `sh`; a non-zero exit code is a value. Raises `DeviceError`."""
        process = self._start(script)
        try:
            stdout, stderr = streams.converse(process, stdin, timeout_s)
        except TimeoutError as error:
            raise failure(self.device, "hung", f"a command did not end within {timeout_s:g} s") from error
        finally:
            streams.abandon(process)
        if process.returncode == SSH_FAILED:
            raise self._failure(stderr, "running a command")
        return Completed(process.returncode, stdout, stderr)

    def push(self, files: Sequence[Upload]) -> None:
        """Carry files as one tar stream. Raises `DeviceError`."""
        if not files:
            return
        with self._stream("-xof -", self.base, "pushing") as process:
            writer = streams.Writer(process, self.policy.stall_s)
            with tarfile.open(mode="w|", fileobj=cast(IO[bytes], writer), bufsize=1 << 18, format=tarfile.GNU_FORMAT) as tar:
                for file in files:
                    _add(tar, file)
            writer.close()

    def pull(self, folder: str, names: Sequence[str], into: Path, limit_bytes: int) -> None:
        """Bring files back as one tar stream; nothing in it is written but regular files of these names. Raises `DeviceError`."""
        wanted: Set[str] = set(names)
        try:
            with self._stream("-cf - .", f"{self.base}/{folder}", "pulling") as process:
                reader = streams.Reader(process, self.policy.stall_s, limit_bytes + _TAR_BYTES)
                with tarfile.open(mode="r|", fileobj=cast(IO[bytes], reader), bufsize=1 << 18) as tar:
                    wanted -= _unpack(tar, wanted, into, limit_bytes)
                reader.drain()
        except streams.TooMuchError as error:
            raise too_much(self.device, self.policy.result_bytes) from error
        if wanted:
            raise failure(self.device, "corrupt", f"{min(wanted)} did not come back")

    def recover(self) -> None:
        """Log in again until the board answers. Raises `DeviceError` with what it is when it does not in time."""
        deadline = time.monotonic() + self.policy.reconnect_s
        while True:
            try:
                self._restart()
                return
            except DeviceError as error:
                if error.reason not in ("dropped", "powered-off", "hung") or time.monotonic() > deadline:
                    reason = "powered-off" if error.reason in ("dropped", "hung") else error.reason
                    what = f"the board dropped and was not back after {self.policy.reconnect_s:g} s ({error.message})"
                    raise failure(self.device, reason, what) from error
            time.sleep(0.2)

    def _restart(self) -> None:
        if not self._is_logged_in():
            (self._folder / "control").unlink(missing_ok=True)
            self.log_in()
        self.shell("exit 0", b"", min(5.0, self.policy.stall_s))

    def _is_logged_in(self) -> bool:
        command = [*self._client(), "-O", "check", "--", self._host]
        nothing = subprocess.DEVNULL
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing, timeout=5, check=False).returncode == 0
        return False

    @contextlib.contextmanager
    def _stream(self, arguments: str, folder: str, doing: str) -> Iterator[subprocess.Popen[bytes]]:
        """A remote tar in `folder`, whose failure is raised when the block ends, whatever the block made of it."""
        script = f"cd {shlex.quote(folder)} && exec tar {arguments}"
        process = self._start(script)
        said = streams.Tail(process.stderr)
        try:
            yield process
            code = streams.finish(process, self.policy.stall_s)
            if code:
                raise self._tar_failure(said.text(self.policy.stall_s), doing)
        except TimeoutError as error:
            raise failure(self.device, "hung", f"no answer while {doing}") from error
        except _BROKEN as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise self._tar_failure(self._last_words(process, said), doing) from error
        finally:
            streams.abandon(process)

    def _last_words(self, process: subprocess.Popen[bytes], said: streams.Tail) -> str:
        """What a board said before its stream broke; nothing where it does not end either."""
        with contextlib.suppress(TimeoutError):
            streams.finish(process, 1.0)
            return said.text(1.0)
        return ""

    def _tar_failure(self, said: str, doing: str) -> DeviceError:
        reason = reason_of(said, "")
        return failure(self.device, reason, f"{last_line(said)} while {doing}") if reason else self._failure(said, doing)

    def _failure(self, said: str, doing: str) -> DeviceError:
        reason = next((reason for words, reason in _BY_TEXT if words in said.lower()), "dropped")
        return failure(self.device, reason, f"{last_line(said) or 'the link broke'} while {doing}", _HINTS.get(reason))

    def _start(self, script: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._remote(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _remote(self, script: str) -> list[str]:
        # The outer sh turns a signal into 128 + signal, which ssh would report as 255, its own failures' code.
        command = f"exec sh -c {shlex.quote(_OUTER)} {shlex.quote(script)}"
        return [*self._client(), "-T", "--", self._host, command]

    def _client(self) -> list[str]:
        alive_s = max(1, round(self.policy.stall_s / 4))
        settings = {
            "BatchMode": "yes",
            "ConnectTimeout": str(max(1, round(min(10.0, self.policy.stall_s)))),
            "ServerAliveInterval": str(alive_s),
            "ServerAliveCountMax": "3",
            "ControlPath": str(self._folder / "control"),
            "ControlMaster": "no",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "ClearAllForwardings": "yes",
        }
        command = [self.policy.program, *(["-F", self.policy.config] if self.policy.config else [])]
        command += [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        command += ["-i", self.policy.identity] if self.policy.identity else []
        return command + (["-p", self._port] if self._port else [])


def _add(tar: tarfile.TarFile, file: Upload) -> None:
    member = tarfile.TarInfo(file.remote)
    member.size = file.path.stat().st_size
    member.mode = file.mode
    member.mtime = int(file.path.stat().st_mtime)
    with file.path.open("rb") as stream:
        tar.addfile(member, stream)


def _unpack(tar: tarfile.TarFile, names: Set[str], into: Path, limit_bytes: int) -> Set[str]:
    """Write the regular files of these names, at most `limit_bytes` together; the names that were there. Raises `streams.TooMuchError`."""
    found = set()
    for member in tar:
        name = str(PurePosixPath(member.name))
        source = tar.extractfile(member) if member.isreg() and not member.issparse() and name in names else None
        if source is None:
            continue
        if member.size < 0:
            raise tarfile.ReadError(f"{name} has {member.size} bytes")
        limit_bytes -= member.size
        if limit_bytes < 0:
            raise streams.TooMuchError
        found.add(name)
        with (into / name).open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    return found
