"""The backend for AMD's DPU and its like: ONNX in, QDQ ONNX of power-of-two int8 out, judged bit by bit in `edgekit.virtual.dpu`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgekit.backends import Artifact, Candidate, Context, Tap
from edgekit.formats import Model, Session
from edgekit.graph import Graph

name = "vitis"
accepts = ("onnx",)
precisions = ("w8a8",)

MODEL_FILE = "model.onnx"
"""In the artifact's folder, beside `quantization.json` and `README.txt`."""


def own_precision(model: Model) -> str | None:
    """`w8a8` for a model that already has quantizers, which is then checked and kept; None for a float model."""
    return "w8a8" if any(node.op_type == "QuantizeLinear" for node in model.handle.graph.node) else None


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Bring the model into DPU forms and split off what stays on the CPU; the result rounds and writes one artifact a call.

    Raises `ConversionError` for a model without an operator of the DPU, and for a quantized one that is not power-of-two int8.
    """
    from edgekit.backends.vitis import build

    return build.prepare(model, context)


def emulate(artifact: Artifact) -> Session:
    """The artifact in the integer reference, with the rounding that the artifact names. Outputs are by source name."""
    from edgekit.backends.vitis import build

    return build.emulate(artifact)


def graph(artifact: Artifact) -> Graph:
    """The units of the artifact: an operator with its activation is one, quantizers are none."""
    from edgekit.backends.vitis import report

    return report.graph(artifact.path / MODEL_FILE)


def trim(graph: Graph, folder: Path) -> dict[str, str]:
    """Write the partition report into `folder`; file name -> what it is for."""
    from edgekit.backends.vitis import report

    return report.trim(graph, folder)


def tapped(artifact: Artifact, out: Path) -> tuple[Artifact, tuple[Tap, ...]]:
    """A copy whose quantized tensors are outputs too, for drift."""
    from edgekit.backends.vitis import build

    return build.tapped(artifact, out)
