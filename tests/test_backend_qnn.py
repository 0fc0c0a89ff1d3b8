"""The Hexagon backend's refusals and sentences; the simulator itself is asked in the slow test."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from edgekit import formats, job, target
from edgekit.backends import Candidate, Context
from edgekit.backends import qnn as backend
from edgekit.errors import RunnerError, UsageError
from edgekit.hostruntimes import onnxruntime_qnn
from edgekit.job import Job, TensorFile
from edgekit.tensors import TensorSpec
from edgekit.transports import virtual
from tests.tiny import write_onnx


@pytest.fixture
def model(tmp_path):
    shape = (1, 4, 8, 8)
    nodes = [("Sigmoid", ["x"], ["h"]), ("Add", ["h", "x"], ["y"])]
    path = write_onnx(tmp_path / "net.onnx", [("x", "float32", shape)], [("y", "float32", shape)], nodes)
    return formats.open(str(path))


def context(tmp_path, arch: int) -> Context:
    found = target.load("hexagon-v75")
    samples = [{"x": np.random.default_rng(i).standard_normal((1, 4, 8, 8)).astype(np.float32)} for i in range(4)]
    (tmp_path / "work").mkdir(exist_ok=True)
    return Context(msgspec.structs.replace(found, options={**found.options, "arch": arch}), samples, tmp_path / "work")


def test_an_unknown_generation_is_refused(model, tmp_path):
    with pytest.raises(UsageError, match="unknown Hexagon generation 85"):
        backend.prepare(model, context(tmp_path, 85))


def test_an_artifact_of_another_generation_never_runs(tmp_path):
    (tmp_path / "hexagon").mkdir()
    (tmp_path / "hexagon" / "build.json").write_text('{"arch": 73}')
    spec = TensorSpec("y", (1,), "float32")
    job.write(tmp_path, Job("onnxruntime-qnn", "hexagon", ((TensorFile("x", "float32", (1,), "x.raw"),),), (spec,)))
    with pytest.raises(UsageError, match="built for Hexagon v73, and the device is v68"):
        virtual.connect("hexagon-v68", {}).execute(tmp_path, tmp_path / "result", 10)


@pytest.mark.parametrize("option", ["provider.backend_path", "performance"])
def test_an_option_that_nothing_reads_is_refused(option):
    spec = TensorSpec("y", (1,), "float32")
    asked = Job("onnxruntime-qnn", "hexagon", ((TensorFile("x", "float32", (1,), "x.raw"),),), (spec,), accelerator="qnn", options={option: "1"})
    with pytest.raises(RunnerError, match=f"has no option '{option}'"):
        onnxruntime_qnn.open(asked)


def test_the_libraries_of_a_phone_are_those_of_its_generation():
    assert onnxruntime_qnn.device_libraries(68) == ("libQnnHtp.so", "libQnnSystem.so", "libQnnHtpV68Stub.so", "libQnnHtpV68Skel.so")


@pytest.mark.parametrize("code", sorted(onnxruntime_qnn.CODES))
def test_load_error_codes_become_sentences(code):
    assert onnxruntime_qnn.explain(f"Failed. Error code: {code}").startswith(onnxruntime_qnn.CODES[code])
    assert onnxruntime_qnn.explain(f"line 9{code}") == f"line 9{code}"
    assert onnxruntime_qnn.explain("Load model from folder/model.onnx failed:This graph is refused") == "This graph is refused"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["a8w8", "a16w8"])
def test_the_simulator_agrees_with_the_float_model(model, tmp_path, precision):
    pytest.importorskip("onnxruntime_qnn")
    artifact = backend.prepare(model, context(tmp_path, 75))(Candidate(precision))
    x = np.random.default_rng(9).uniform(-2, 2, (1, 4, 8, 8)).astype(np.float32)
    got = backend.emulate(artifact).run({"x": x})["y"]
    assert (artifact.path / "context.onnx").stat().st_size > 0
    assert np.abs(got - (x + 1 / (1 + np.exp(-x)))).max() < {"a8w8": 0.06, "a16w8": 0.005}[precision]
