"""An artifact on the HTP simulator of this machine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgekit.backends import Artifact
from edgekit.errors import ConversionError
from edgekit.formats import Session
from edgekit.formats.onnx import OnnxSession
from edgekit.hostruntimes import onnxruntime_qnn
from edgekit.hostruntimes.onnxruntime_qnn import Build
from edgekit.tensors import Signature


def emulate(artifact: Artifact) -> Session:
    """The artifact on the simulator."""
    return _session(artifact.path, artifact.signature, tuple(sorted(artifact.runtime_names.items())))


@functools.lru_cache(maxsize=2)
def _session(folder: Path, signature: Signature, names: Sequence[tuple[str, str]]) -> Session:
    built = msgspec.json.decode((folder / "build.json").read_bytes(), type=Build)
    return OnnxSession(onnxruntime_qnn.session(folder / "model.onnx", built.arch, built.soc_model), signature, _fails, dict(names))


def _fails(error: Exception) -> ConversionError:
    return ConversionError(f"the HTP simulator fails on the model: {onnxruntime_qnn.explain(str(error))}")
