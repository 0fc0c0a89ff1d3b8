"""Job folders for tests, and the two executors that must treat them alike."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekit import job as contract
from edgekit import runtimes
from edgekit.job import Job, Result, TensorFile
from edgekit.tensors import TensorSpec, read_raw, write_raw

HERE = f"{sys.platform}-{platform.machine()}"
PYTHON = [sys.executable, "-m", "edgekit.hostrun"]

Sample = Mapping[str, np.ndarray[Any, Any]]


def write(
    folder: Path, artifact: Path, samples: Sequence[Sample], outputs: Sequence[TensorSpec], *, library: Path | None = None, **fields: Any
) -> Path:
    """Write a job folder: a copy of the artifact, a link to the library, each sample's inputs as files."""
    (folder / "inputs").mkdir(parents=True)
    shutil.copy(artifact, folder / artifact.name)
    if library is not None:
        (folder / library.name).symlink_to(library)
    files = tuple(tuple(_input(folder, i, name, array) for name, array in sample.items()) for i, sample in enumerate(samples))
    fields = {"runtime": "litert" if artifact.suffix == ".tflite" else "onnxruntime", "min_runs": 0, **fields}
    contract.write(folder, Job(artifact=artifact.name, samples=files, outputs=tuple(outputs), library=library.name if library else "", **fields))
    return folder


def _input(folder: Path, sample: int, name: str, array: Any) -> TensorFile:
    file = f"inputs/{sample}-{name}.raw"
    write_raw(folder / file, array)
    return TensorFile(name, array.dtype.name, array.shape, file)


def execute(command: Sequence[str], folder: Path, result: Path, **environment: str) -> tuple[int, Result]:
    """Run an executor; its exit code and the result it wrote, which must be there and must parse."""
    result.mkdir(exist_ok=True)
    done = subprocess.run(
        [*command, str(folder), str(result)], capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environment}
    )
    assert done.stdout == ""
    assert not list(result.glob(".*")), "a temporary file was left"
    return done.returncode, contract.read_result(result)


def outputs(folder: Path, result: Result) -> list[dict[str, Any]]:
    """The output tensors of every sample, by name."""
    return [{file.name: read_raw(folder / file.file, file.spec) for file in sample} for sample in result.outputs]


def native() -> list[str]:
    """The command of the native runner for this machine."""
    return [str(runtimes.runner(HERE))]


def library(runtime: str) -> Path:
    """The runtime's shared library of this machine's Python package."""
    return runtimes.library(runtime, HERE)
