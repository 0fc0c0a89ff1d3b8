"""Resident firmware behind a serial port: `serial:PORT`, with the protocol of `apps/mcu/SERIAL.md`. The model is in the firmware already."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from edgekit import job as contract
from edgekit.errors import RunnerError, UsageError
from edgekit.job import Job, Result, TensorFile
from edgekit.tensors import TensorSpec
from edgekit.transports import Facts, folders
from edgekit.transports.failures import LONGEST_S, failure, parse_options
from edgekit.transports.serial_peer import Hello, Peer, SessionLostError
from edgekit.transports.tty import Tty

FORM = "serial:PORT"
_MODEL_FILE = "edgekit_model.json"


class SerialOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`answer_s`: how long an answer may take before the request is repeated, at most `attempts` times. `restarts`: how many resets are forgiven."""

    baud: int = 115200
    answer_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)] = 1.0
    attempts: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 10
    restarts: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 3
    identity: str = ""


class _Tensors(msgspec.Struct, frozen=True):
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def check(place: str) -> None:
    """A port must be named. Raises `UsageError`."""
    if not place:
        raise UsageError("serial: names no port", "serial:/dev/ttyACM0")


def connect(address: str, options: Mapping[str, Any]) -> SerialLink:
    """Open `PORT` or `PORT?baud=...`. Raises `UsageError` for a bad option, `DeviceError` when the port cannot be used."""
    port, _, query = address.partition("?")
    given = dict(pair.partition("=")[::2] for pair in query.split("&")) if query else {}
    check(port)
    return SerialLink(port, parse_options({**given, **options}, SerialOptions, "serial"))


class SerialLink:
    """Firmware at a port."""

    def __init__(self, port: str, options: SerialOptions) -> None:
        self._options, self._device = options, f"serial:{port}"
        self._tty = Tty(port, options.baud)
        self._peer = Peer(self._tty, options.answer_s, options.attempts)

    def facts(self) -> Facts:
        """What is known of the firmware; a serial line has no serial number, so the identity is the port's unless the farm gives one."""
        hello = self._peer.hello()
        sizes = {"input_bytes": str(list(hello.inputs)), "output_bytes": str(list(hello.outputs))}
        return Facts(self._options.identity or self._device, "none", "", "mcu", "resident", cores=1, details=sizes)

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run every sample on the device. After a reset all is begun again, as a model's state is lost then.

        Raises `DeviceError` (`hung`, `dropped`, `corrupt`, `unsupported`).
        """
        asked = contract.read_job(job)
        deadline = time.monotonic() + timeout_s
        with folders.received(result.resolve()) as part:
            (part / "outputs").mkdir()
            try:
                contract.write(part, self._restarting(asked, job, part, deadline))
            except RunnerError as error:
                contract.write(part, Result("failed", error.stage, error.message, runtime=asked.runtime))  # type: ignore[arg-type]  # a stage by contract

    def close(self) -> None:
        """Close the port."""
        self._tty.close()

    def _restarting(self, job: Job, folder: Path, part: Path, deadline: float) -> Result:
        for _ in range(self._options.restarts + 1):
            try:
                return self._run(job, folder, part, deadline)
            except SessionLostError:
                continue
        raise failure(self._device, "dropped", f"the device was reset {self._options.restarts + 1} times during the run")

    def _run(self, job: Job, folder: Path, part: Path, deadline: float) -> Result:
        tensors = _tensors(job, folder)
        hello = self._peer.hello()
        _check(hello, tensors)
        states: dict[str, bytes] = {}
        made, ticks = [], 0
        for number, sample in enumerate(job.samples):
            left = deadline - time.monotonic()
            if left <= 0:
                raise failure(self._device, "hung", "the run did not end in time", "raise --timeout")
            outputs, ticks = self._peer.run(hello, number, _inputs(folder, sample, tensors, states), left)
            by_name = {spec.name: data for spec, data in zip(tensors.outputs, outputs, strict=True)}
            states = {target: by_name[source] for source, target in job.state_from.items()}
            made.append(tuple(_write(part, f"outputs/{number}-{i}.raw", spec, by_name[spec.name]) for i, spec in enumerate(job.outputs)))
        return Result("ok", runtime=job.runtime, runtime_version="resident firmware", outputs=tuple(made), counters={"ticks": ticks} if ticks else {})


def _tensors(job: Job, folder: Path) -> _Tensors:
    """The firmware's tensors in its order: those of the artifact that it was built from, else the job's."""
    try:
        found = msgspec.json.decode((contract.inside(folder, job.artifact) / _MODEL_FILE).read_bytes(), type=_Tensors)
    except OSError:
        found = _Tensors(tuple(file.spec for file in job.samples[0]), job.outputs)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RunnerError(f"{_MODEL_FILE}: {error}", stage="model") from error
    if {spec.name for spec in found.inputs} != {file.name for file in job.samples[0]}:
        raise RunnerError(f"the firmware takes {[spec.name for spec in found.inputs]}, not {[file.name for file in job.samples[0]]}", stage="prepare")
    if missing := {spec.name for spec in job.outputs} - {spec.name for spec in found.outputs}:
        raise RunnerError(f"the firmware does not give {sorted(missing)}", stage="prepare")
    return found


def _bytes(spec: TensorSpec) -> int:
    import numpy as np

    return spec.elements * np.dtype(spec.dtype).itemsize


def _check(hello: Hello, tensors: _Tensors) -> None:
    wanted = tuple(map(_bytes, tensors.inputs)), tuple(map(_bytes, tensors.outputs))
    if (hello.inputs, hello.outputs) != wanted:
        text = f"the firmware holds another model: inputs {hello.inputs} and outputs {hello.outputs} bytes, this one {wanted[0]} and {wanted[1]}"
        raise RunnerError(text, "flash the firmware of this bundle", stage="model")


def _inputs(folder: Path, sample: tuple[TensorFile, ...], tensors: _Tensors, states: Mapping[str, bytes]) -> list[bytes]:
    files = {file.name: file for file in sample}
    data = []
    for spec in tensors.inputs:
        value = states[spec.name] if spec.name in states else contract.inside(folder, files[spec.name].file).read_bytes()
        if len(value) != _bytes(spec):
            raise RunnerError(f"input {spec.name!r} has {len(value)} bytes, not {_bytes(spec)}", stage="input")
        data.append(value)
    return data


def _write(part: Path, name: str, spec: TensorSpec, data: bytes) -> TensorFile:
    (part / name).write_bytes(data)
    return TensorFile(spec.name, spec.dtype, spec.shape, name)
