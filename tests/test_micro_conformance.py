"""Every integer operator that TFLM registers and a converter can emit, in TFLM and as generated C on emulated cores, against LiteRT."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("bakenn")
pytest.importorskip("tflite_micro")

from edgekit import opset
from edgekit.formats import tflite
from edgekit.virtual.cortex_m import tflm as tree
from edgekit.virtual.cortex_m import tflm_image
from tests import micro_conformance, micro_ops

CASES = list(micro_ops.cases())
_ABSENT = [name for name in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(name) is None]
needs_emulator = pytest.mark.skipif(bool(_ABSENT) and not os.environ.get("CI"), reason=f"not installed here: {', '.join(_ABSENT)}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tflm_equals_the_reference(tmp_path: Path, case: micro_ops.Case) -> None:
    model = micro_conformance.opened([case], tmp_path / "net.tflite")
    given = micro_conformance.inputs(model, CASES.index(case))
    wanted = micro_conformance.reference(case, model, given)
    assert all(len(np.unique([sample[name] for sample in wanted])) > 1 for name in wanted[0]), "outputs that do not move prove nothing"
    assert micro_conformance.steps_apart(micro_conformance.interpreted(model, given), wanted) <= micro_conformance.allowed(case)


def test_a_relu6_that_tflm_would_not_rescale_is_refused(tmp_path: Path) -> None:
    """It runs, and gives values far from the reference: the verdict must say so before anything ships."""
    case = micro_ops.one("RELU6", "int8", out_scale=6 / 255, out_zero=-128, version=2)
    model = micro_conformance.opened([case], tmp_path / "net.tflite")
    given = micro_conformance.inputs(model, 1)
    assert micro_conformance.steps_apart(micro_conformance.interpreted(model, given), micro_conformance.reference(case, model, given)) > 50
    (verdict,) = opset.judge(tflite.graph(model.path), "cmsis_nn_dsp", {"kernels": "tflm"})
    assert verdict.status == "unsupported" and "without rescaling" in verdict.reason


def test_what_faults_on_a_core_is_refused(tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name in micro_conformance.FAULTS)
    model = micro_conformance.opened([case], tmp_path / "net.tflite")
    assert model.path
    (verdict,) = opset.judge(tflite.graph(model.path), "cmsis_nn_dsp", {"kernels": "tflm"})
    assert verdict.status == "unsupported" and "bias" in verdict.reason


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("name", [*micro_conformance.NO_REFERENCE, *micro_conformance.ONE_STEP])
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m55"])
def test_a_core_equals_the_interpreter_here_where_litert_does_not(tmp_path: Path, name: str, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    micro_conformance.give_interpreter(core, monkeypatch)
    (case,) = (case for case in CASES if case.name == name)
    model = micro_conformance.opened([case], tmp_path / "net.tflite")
    given = micro_conformance.inputs(model, CASES.index(case))
    arrays = [list(sample.values()) for sample in given]
    found = micro_conformance.on_core(core, "tflm", tmp_path / "net.tflite", model.signature, arrays, tmp_path / "run")
    assert micro_conformance.steps_apart(found, micro_conformance.interpreted(model, given)) == 0


LACKED = {"REDUCE_MIN int8": "RESOLVER", "REVERSE_V2 int8": "RESOLVER", "PACK int16": "INVOKE", "TRANSPOSE_CONV int16": "ARENA"}
"""What the ready-made interpreter for Cortex-M55 has no kernel for, and the error it gives (TRANSPOSE_CONV: `FAULTS`)."""


@pytest.mark.slow
@needs_emulator
def test_tflm_equals_the_reference_on_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro_conformance.give_interpreter("cortex-m55", monkeypatch)
    cases = [case for case in CASES if case.name not in LACKED]
    apart = micro_conformance.interpreter_apart("cortex-m55", cases, tmp_path / "made")
    assert len(cases) > 75 and apart.keys() == {case.name for case in cases}
    steps = {case.name: micro_conformance.allowed(case) for case in cases}
    assert {name: found for name, found in apart.items() if found > steps[name]} == {}


@pytest.mark.slow
@needs_emulator
@micro_conformance.needs_ready_made
@pytest.mark.parametrize("name", LACKED)
def test_what_the_ready_made_interpreter_lacks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(tree.VARIABLE, tflm_image.PACKAGE)
    (case,) = (case for case in CASES if case.name == name)
    model = micro_conformance.opened([case], tmp_path / "net.tflite")
    given = [list(sample.values()) for sample in micro_conformance.inputs(model, 1)]
    with pytest.raises(RuntimeError, match=LACKED[name]):
        micro_conformance.on_core("cortex-m55", "tflm", tmp_path / "net.tflite", model.signature, given, tmp_path / "run")


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("core", micro_conformance.CORES)
def test_generated_c_equals_the_reference_on_a_core(tmp_path: Path, core: str) -> None:
    apart = micro_conformance.cores_apart(core, CASES, tmp_path / "made")
    layers = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "AVERAGE_POOL_2D", "MAX_POOL_2D", "RESHAPE", "PAD"}
    assert {f"{name} int8" for name in layers} <= apart.keys()
    steps = {case.name: micro_conformance.allowed(case) for case in CASES}
    assert all(found <= steps[name] for name, found in apart.items())
