"""An artifact on the HTP simulator of this machine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit.backends import Artifact
from edgekit.errors import ConversionError
from edgekit.formats import Session
from edgekit.hostruntimes import onnxruntime_qnn
from edgekit.hostruntimes.onnxruntime_qnn import Build
from edgekit.tensors import Array, Arrays, Signature


def emulate(artifact: Artifact) -> Session:
    """The artifact on the simulator."""
    return _session(artifact.path, artifact.signature, tuple(sorted(artifact.runtime_names.items())))


@functools.lru_cache(maxsize=2)
def _session(folder: Path, signature: Signature, names: Sequence[tuple[str, str]]) -> Session:
    built = msgspec.json.decode((folder / "build.json").read_bytes(), type=Build)
    return _Simulated(onnxruntime_qnn.session(folder / "model.onnx", built.arch, built.soc_model), signature, dict(names))


@dataclasses.dataclass(frozen=True)
class _Simulated:
    runtime: Any
    signature: Signature
    names: dict[str, str]

    def run(self, inputs: Arrays) -> dict[str, Array]:
        present = {value.name for value in self.runtime.get_inputs()}
        feed = {self.names.get(n, n): inputs[n] for n in (s.name for s in self.signature.inputs) if self.names.get(n, n) in present}
        names = [spec.name for spec in self.signature.outputs]
        try:
            return dict(zip(names, self.runtime.run([self.names.get(n, n) for n in names], feed), strict=True))
        except Exception as error:  # onnxruntime raises its own types
            raise ConversionError(f"the HTP simulator fails on the model: {onnxruntime_qnn.explain(str(error))}") from error
