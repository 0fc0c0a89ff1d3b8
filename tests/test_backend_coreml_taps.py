"""The inside of packages: every intermediate tensor as an output, and `drift` that names the operator where a device parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import device, drift, formats, packager
from edgekit.backends import Artifact, Candidate, coreml
from edgekit.runner import RunOptions
from edgekit.transports.virtual import coreml as virtual
from edgekit.virtual.coreml import package
from tests import coreml_packages as made

pytest.importorskip("torch")

SHAPE = (1, 4, 6, 6)
WEIGHTS = np.random.default_rng(3).normal(size=(3, 4, 4, 1, 1)).astype(np.float32)


def chain(folder: Path, dtype: str = "float32") -> Path:
    """Three 1x1 convolutions with a ReLU after each; their weights are blobs."""
    blobs, read, operations = made.Weights(), "x", []
    for index, weight in enumerate(WEIGHTS):
        made_weight, result = f"w{index}", "y" if index == 2 else f"relu_{index}"
        operations += [
            made.operation("const", made_weight, {}, [made.named(made_weight, dtype, weight.shape)], {"val": blobs.add(weight, dtype)}),
            made.operation("conv", f"conv_{index}", {"x": read, "weight": made_weight}, [made.named(f"conv_{index}", dtype, SHAPE)]),
            made.operation("relu", f"relu_{index}", {"x": f"conv_{index}"}, [made.named(result, dtype, SHAPE)]),
        ]
        read = result
    data = made.model({"x": (dtype, SHAPE)}, {"y": dtype}, made.block(operations, ["y"]))
    return made.write(folder, data, bytes(blobs.data))


def artifact(path: Path) -> Artifact:
    return Artifact(path, "mlprogram", formats.open(str(path)).signature, Candidate("fp32"))


def test_every_result_becomes_an_output_and_keeps_its_value(tmp_path: Path) -> None:
    source = artifact(chain(tmp_path / "chain.mlpackage"))
    opened, taps = coreml.tapped(source, tmp_path / "tapped.mlpackage")
    assert [(tap.tensor, tap.operator, tap.type) for tap in taps] == [
        ("conv_0", 0, "conv"), ("relu_0", 1, "relu"), ("conv_1", 2, "conv"), ("relu_1", 3, "relu"), ("conv_2", 4, "conv"), ("y", 5, "relu"),
    ]
    assert [coreml.graph(opened).operators[tap.operator].type for tap in taps] == [tap.type for tap in taps]
    x = np.random.default_rng(4).normal(size=SHAPE).astype(np.float32)
    found = coreml.emulate(opened).run({"x": x})
    assert list(found) == ["y", "conv_0", "relu_0", "conv_1", "relu_1", "conv_2"]
    np.testing.assert_array_equal(found["y"], coreml.emulate(source).run({"x": x})["y"])
    first = np.einsum("oi,bihw->bohw", WEIGHTS[0, :, :, 0, 0], x)
    np.testing.assert_allclose(found["conv_0"], first, atol=1e-5)
    np.testing.assert_array_equal(found["relu_0"], np.maximum(found["conv_0"], 0))


def test_only_the_outputs_are_new(tmp_path: Path) -> None:
    source = chain(tmp_path / "chain.mlpackage")
    opened, taps = coreml.tapped(artifact(source), tmp_path / "tapped.mlpackage")
    before, after = package.read(source).program, package.read(opened.path).program
    assert (after.block.operations, after.inputs, after.features_in) == (before.block.operations, before.inputs, before.features_in)
    assert after.features_out[:1] == before.features_out and len(after.features_out) == len(taps)


def test_a_tensor_that_is_called_as_an_output_of_the_source_is_told_apart(tmp_path: Path) -> None:
    source = artifact(chain(tmp_path / "chain.mlpackage"))
    (spec,) = source.signature.outputs
    renamed = Artifact(source.path, "mlprogram", source.signature.__class__(source.signature.inputs, (type(spec)("conv_0", SHAPE, "float32"),)),
                       source.candidate, {"conv_0": "y"})  # fmt: skip
    opened, taps = coreml.tapped(renamed, tmp_path / "tapped.mlpackage")
    assert [tap.tensor for tap in taps] == ["conv_0 inside", "relu_0", "conv_1", "relu_1", "conv_2", "conv_0"]
    assert opened.runtime_names == {"conv_0": "y", "conv_0 inside": "conv_0"}
    found = coreml.emulate(opened).run({"x": np.ones(SHAPE, np.float32)})
    assert float(found["conv_0"].min()) >= 0 > float(found["conv_0 inside"].min())


def test_a_wrong_weight_on_the_device_is_found_at_its_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = chain(tmp_path / "chain.mlpackage", "float16")
    made_bundle = packager.package(str(source), "ios-coreml", packager.Options(out=tmp_path)).bundle
    assert made_bundle is not None
    whole = drift.locate(made_bundle, device.parse("virtual:coreml"), RunOptions())
    assert whole.first is None and [step.tensor for step in whole.steps] == ["conv_0", "relu_0", "conv_1", "relu_1", "conv_2", "y"]

    class Damaged(virtual.VirtualCoreml):
        """A device on which one weight of the second layer is another."""

        def execute(self, job: Path, result: Path, timeout_s: float) -> None:
            (blob,) = job.rglob("weight.bin")
            data = blob.read_bytes()
            at = data.index(WEIGHTS[1].astype(np.float16).tobytes())
            blob.write_bytes(data[:at] + np.float16(9).tobytes() + data[at + 2 :])
            super().execute(job, result, timeout_s)

    def connect(name: str, options: Any) -> Damaged:
        return Damaged(name, options, virtual._DEVICE)

    monkeypatch.setattr(virtual, "connect", connect)
    found = drift.locate(made_bundle, device.parse("virtual:coreml"), RunOptions())
    assert found.first == 2 and found.steps[2].tensor == "conv_1" and found.steps[2].operator == 2
    assert [bool(step.parts) for step in found.steps] == [False, False, True, True, True, True]
