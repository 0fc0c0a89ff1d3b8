"""Trained models through the DPU backend: legal, named CPU parts, the integer reference equal to the file in ONNX Runtime.

`python -m tests.zoo.test_zoo_dpu` measures with more samples and writes the table of docs/fpga.md.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgekit import converters, formats, target
from edgekit.backends import Artifact, Candidate, Context, vitis
from edgekit.backends.vitis import heads, report
from edgekit.formats import Model
from edgekit.virtual.dpu import reader
from edgekit.virtual.dpu.arithmetic import position
from edgekit.virtual.dpu.program import Program
from tests.dpu_models import by_onnxruntime
from tests.zoo import table

TARGET = "fpga-dpuczdx8g"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "fpga.md"
TABLE = "<!-- table: python -m tests.zoo.test_zoo_dpu -->"


@dataclasses.dataclass(frozen=True)
class Asked:
    """A floor under the fidelity with the test's few samples (below what is reached: nothing gets worse unseen), and what stays on the CPU."""

    least_db: float
    on_cpu: frozenset[str] = frozenset()
    head: bool = False


ASKED = {
    "efficientnet-lite0": Asked(17.0),
    "mobilenet-v2": Asked(4.0, frozenset({"Softmax"})),
    "ppocr-cls": Asked(13.0, frozenset({"Softmax"})),
    "ppocr-det": Asked(13.0, frozenset({"Sigmoid"}), head=True),
    "selfie-segmentation": Asked(5.0, frozenset({"Sigmoid", "Reshape"}), head=True),
    "small-resnet": Asked(30.0),
}
"""mobilenet-v2 has random weights, which make more of any error: its float network on images of 8 bits is 12 dB off by itself."""


def small_resnet() -> Any:
    """Two residual blocks and a head, seeded."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.b(torch.relu(self.a(x))))

    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    model = nn.Sequential(nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(), Block(), head)
    return model.eval(), (torch.zeros(1, 3, 64, 64),)


@dataclasses.dataclass(frozen=True)
class Made:
    """A packaged model beside its source. `decibels` and `agreement` compare with the float source on held-out samples; `input_db` is the
    float source on inputs rounded as the artifact rounds them.
    """

    source: Model
    artifact: Artifact
    held_out: Sequence[Any]
    build_s: float
    decibels: float
    agreement: float
    input_db: float


def make(name: str, folder: Path, calibration: int, held_out: int) -> Made:
    row = dataclasses.replace(table.rows()["ppocr-cls"], reference="tests.zoo.test_zoo_dpu:small_resnet", inputs={}, samples=_small)
    row = table.rows().get(name, row)
    model = source = formats.open(row.reference, row.inputs)
    for number, hop in enumerate(converters.route(source.format, vitis.accepts)):
        (folder / str(number)).mkdir()
        model = hop.convert(model, folder / str(number))
    entry = model.signature.inputs[0].name
    samples = [{entry: x} for x in _only(row.samples(calibration, 1))]
    start = time.perf_counter()
    artifact = vitis.prepare(model, Context(target.load(TARGET), samples, folder))(Candidate("w8a8"))
    build_s = time.perf_counter() - start
    judged = _only(row.samples(held_out, 7))
    return Made(source, artifact, judged, build_s, *_fidelity(source, artifact, entry, judged))


def _only(samples: dict[str, Any]) -> Any:
    return next(iter(samples.values()))


def _small(count: int, seed: int) -> dict[str, Any]:
    return table.image("x", (64, 64), mean=0.5, std=0.5, layout="NCHW")(count, seed)


def _fidelity(source: Model, artifact: Artifact, entry: str, judged: Sequence[Any]) -> tuple[float, float, float]:
    session, floats, name = vitis.emulate(artifact), formats.session(source), source.signature.inputs[0].name
    program = reader.read(artifact.path / vitis.MODEL_FILE)
    entries = [step for step in program.steps if step.type == "QuantizeLinear" and step.inputs[0] == program.signature.inputs[0].name]
    step = 2.0 ** -program.positions[entries[0].outputs[0]] if entries else 1.0  # a head in float reads its inputs as they are
    wanted = [_only(floats.run({name: x})).ravel() for x in judged]
    got = [_only(session.run({entry: x})).ravel() for x in judged]
    rounded = [_only(floats.run({name: (np.clip(np.rint(x / step), -128, 127) * step if entries else x).astype(np.float32)})).ravel() for x in judged]
    agreed = float(np.mean([w.argmax() == g.argmax() for w, g in zip(wanted, got, strict=True)]))
    return _decibels(wanted, got), agreed, _decibels(wanted, rounded)


def _decibels(wanted: list[Any], got: list[Any]) -> float:
    signal, noise = sum(float((w**2).sum()) for w in wanted), sum(float(((w - g) ** 2).sum()) for w, g in zip(wanted, got, strict=True))
    return 10 * math.log10(signal / max(noise, 1e-30))


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_zoo(name: str, tmp_path: Path) -> None:
    made = make(name, tmp_path, 16, 8)
    print(f"{name}: {made.decibels:.1f} dB in {made.build_s:.0f} s; inputs alone {made.input_db:.1f} dB")
    assert made.decibels >= ASKED[name].least_db
    graph = vitis.graph(made.artifact)
    on_cpu = [operator for operator in graph.operators if operator.attributes.get("cpu")]
    assert {operator.type for operator in on_cpu if operator.attributes["cpu"] != heads.REASON} == ASKED[name].on_cpu
    assert ASKED[name].head or all(operator.attributes["cpu"] != heads.REASON for operator in on_cpu)
    assert all(operator.attributes["suggestion"] for operator in on_cpu)
    proto = onnx.load(made.artifact.path / vitis.MODEL_FILE)
    _legal(proto, reader.read(proto, "half_even"))
    _equal(proto, made.held_out[:2])


def _legal(proto: Any, program: Program) -> None:
    """Scales are powers of two without zero points; shifts lie in AMD Quark's ranges, computed here from the file's own scales."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    at = {}
    for node in proto.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert not stored[node.input[2]].any()
            assert stored[node.input[2]].dtype == np.int8
            found = position(float(stored[node.input[1]]))
            assert found is not None, node.name
            at[node.output[0]] = found
    reads = {node.input[0]: node for node in proto.graph.node if node.op_type in ("QuantizeLinear", "Relu", "Clip", "LeakyRelu", "Mul")}
    for node in proto.graph.node:
        if node.op_type in ("Conv", "Gemm") and node.input[1] in at:
            behind, leaky = reads[node.output[0]], False
            while behind.op_type != "QuantizeLinear":
                leaky |= behind.op_type == "LeakyRelu"
                behind = reads[behind.output[0]]
            ipos, wpos, bpos, opos = at[node.input[0]], at[node.input[1]], at[node.input[2]], at[behind.output[0]]
            cut = wpos + ipos - opos
            assert 0 <= cut <= 16, node.name
            assert (0 if leaky else min(0, -(24 - (8 + cut)))) <= wpos + ipos - bpos <= 15, node.name
        if node.op_type == "Add" and all(name in at for name in node.input) and node.output[0] in reads:
            behind = reads[node.output[0]]
            behind = behind if behind.op_type == "QuantizeLinear" else reads[behind.output[0]]
            positions = [at[name] for name in node.input]
            assert max(positions) - min(positions) <= 7, node.name
            assert -7 <= min(positions) - at[behind.output[0]] <= 25, node.name
    assert any(step.shift for step in program.steps)


def _equal(proto: Any, samples: Sequence[Any]) -> None:
    """Each step of the integer reference, rounding half to even, against ONNX Runtime on the file, both from ONNX Runtime's int8 tensors.

    Equal, but for means and HardSigmoid, whose float terms are no exact binary fractions: there a half may fall to the other side.
    """
    program = reader.read(proto, "half_even")
    tapped = onnx.ModelProto()
    tapped.CopyFrom(proto)
    steps = [step for step in program.steps if step.place == "dpu"]
    wanted = dict.fromkeys(name for step in steps for name in (*step.inputs, *step.outputs))
    tapped.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None) for name in wanted)
    for sample in samples:
        computed = by_onnxruntime(tapped, {program.signature.inputs[0].name: sample})
        theirs = dict(zip([value.name for value in tapped.graph.output], computed, strict=True))
        for step in steps:
            ours = step.run([theirs[name] for name in step.inputs])[0].astype(np.int32)
            allowed = int(any(kind in step.type for kind in ("AveragePool", "HardSigmoid")))
            assert np.abs(ours - theirs[step.outputs[0]]).max() <= allowed, (step.name, step.type)


def write_table(calibration: int = 32, held_out: int = 48) -> None:
    """Measure every row and put the table into docs/fpga.md."""
    lines = ["| model | SQNR | top-1 agreement | inputs alone | on the DPU | on the CPU | build |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for name in sys.argv[1:] or ASKED:
        with tempfile.TemporaryDirectory() as scratch:
            made = make(name, Path(scratch), calibration, held_out)
            graph = vitis.graph(made.artifact)
            left = [operator for operator in graph.operators if operator.attributes.get("cpu")]
            share = 100 * (1 - sum(operator.macs for operator in left) / graph.macs)
            kinds = ", ".join(f"{sum(o.type == kind for o in left)} {kind}" for kind in sorted({o.type for o in left})) or "nothing"
            classes = f"{100 * made.agreement:.1f} %" if len(made.source.signature.outputs[0].shape) == 2 else "-"
            where = f"{share:.1f} % of MACs, {report.parts(graph)} part(s)"
            lines.append(f"| {name} | {made.decibels:.1f} dB | {classes} | {made.input_db:.1f} dB | {where} | {kinds} | {made.build_s:.0f} s |")
            print(lines[-1], flush=True)
    text = DOCUMENT.read_text("utf-8")
    before, _, rest = text.partition(TABLE)
    after = rest.lstrip("\n").partition("\n\n")[2]
    DOCUMENT.write_text(f"{before}{TABLE}\n\n" + "\n".join(lines) + f"\n\n{after}", "utf-8")


if __name__ == "__main__":
    write_table()
