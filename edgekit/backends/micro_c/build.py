"""From a model to a folder of C: integers from the quantizer, written as bakenn takes them, generated, wrapped, compared, weighed."""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit.backends import Artifact, Candidate, Context, integer_model
from edgekit.backends.micro_c import ends, host, weigh
from edgekit.errors import ConversionError, require
from edgekit.formats import Model
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.graph import Graph
from edgekit.legalize import tflite_bakenn

NAME = "net"
ELSE = "package for the same core without -c: TFLM's interpreter runs it"
PROOFS = 4
"""Random inputs on which the C must equal the reference kernels to the byte, besides calibration samples."""


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Let the quantizer read the model once; the result generates C for one candidate a call."""
    build = integer_model.prepare(model, context)
    return lambda candidate: _finish(*build(candidate), context)


def integers(folder: Path) -> Path:
    """The integer `.tflite` beside a generated folder: what the C computes."""
    return folder.with_name(folder.name + ".tflite")


def twin(folder: Path) -> Path:
    """The same model beside a generated folder in plain C: CMSIS-NN's headers are for Arm compilers alone."""
    return folder.with_name(folder.name + "-host")


def _finish(made: Artifact, graph: Graph, context: Context) -> Artifact:
    signature = made.signature
    if len(signature.inputs) != 1 or len(signature.outputs) != 1:
        counted = f"{len(signature.inputs)} inputs and {len(signature.outputs)} outputs"
        raise ConversionError(f"{made.path.name}: {counted}; generated C takes one of each", ELSE)
    folder = made.path.with_name(made.path.stem.replace(".", "-") + "-c")
    folder.mkdir()
    twin(folder).mkdir()
    shutil.copyfile(made.path, integers(folder))
    model = flatbuffer.load(made.path.read_bytes(), made.path.name)
    head, behind = tflite_bakenn.prepare(model, made.path.name)
    around = ends.write(model, head, behind, made.path)
    prepared = tflite_bakenn.write(model, made.path.with_name("prepared.tflite"))
    for place, options in ((folder, context.target.options), (twin(folder), {})):
        arena = generate(prepared, place, options)
        ends.wrap(place, signature, arena, around, cmsis_nn=(place / "third_party").is_dir())
    artifact = dataclasses.replace(made, path=folder, format="micro-c")
    proof = host.prove(dataclasses.replace(artifact, path=twin(folder)), made.path, context.calibration[:PROOFS], PROOFS)
    parts, said = weigh.parts(artifact, made, graph, context.target, context.limits, next(iter(context.calibration), None))
    return dataclasses.replace(artifact, parts=parts, notices=(*made.notices, proof, *said))


def generate(prepared: Path, folder: Path, options: dict[str, Any], name: str = NAME) -> int:
    """Write bakenn's C into `folder`; the bytes of its arena. Raises `ConversionError` with bakenn's reason."""
    bakenn = require("bakenn", extra="mcu", purpose="generating C")
    cmsis_nn = bool(options.get("cmsis_nn", False))
    target = bakenn.CORTEX_M4 if cmsis_nn else bakenn.CORTEX_M0PLUS if options.get("core") == "cortex-m0plus" else bakenn.PORTABLE_32
    policy = bakenn.KernelPolicy.STATIC_PRIORITY if cmsis_nn else bakenn.KernelPolicy.PORTABLE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = bakenn.CBackendOptions(kernel_policy=policy, enable_cmsis_nn=cmsis_nn, target=target)
            made = bakenn.compile_tflite(str(prepared), str(folder), name=name, backend_options=settings)
    except bakenn.BakeNNError as error:
        raise ConversionError(f"C cannot be generated: {error}", ELSE) from error
    for report in folder.glob(f"bknn_{name}_m*"):  # the manifest and the memory report: their numbers go into the bundle's own
        report.unlink()
    return int(made.memory_report.arena_bytes)
