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
@pytest.mark.skipif(tree.tree() is None, reason=f"{tree.VARIABLE} names no source tree of TFLM")
@pytest.mark.parametrize("name", [*micro_conformance.NO_REFERENCE, *micro_conformance.ONE_STEP])
def test_a_core_equals_the_interpreter_here_where_litert_is_a_step_away(tmp_path: Path, name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    model = micro_conformance.opened([case], tmp_path / "net.tflite")
    given = micro_conformance.inputs(model, CASES.index(case))
    arrays = [list(sample.values()) for sample in given]
    found = micro_conformance.on_core("cortex-m4", "tflm", tmp_path / "net.tflite", model.signature, arrays, tmp_path / "run")
    assert micro_conformance.steps_apart(found, micro_conformance.interpreted(model, given)) == 0


def as_today(case: micro_ops.Case) -> bool:
    """Whether the ready-made interpreter for Cortex-M55 has the kernel, and it computes what today's does."""
    lacks = tflm_image.ABSENT | {"MEAN"} | (tflm_image.NO_INT16 if case.dtype == "int16" else set())
    return case.operator not in lacks and "by channel" not in case.operator


@pytest.mark.slow
@needs_emulator
@micro_conformance.needs_ready_made
def test_tflm_equals_the_reference_on_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tree.VARIABLE, tflm_image.PACKAGE)
    cases = [case for case in CASES if as_today(case)]
    apart = micro_conformance.interpreter_apart("cortex-m55", cases, tmp_path / "made")
    assert len(cases) > 60 and apart.keys() == {case.name for case in cases}
    steps = {case.name: micro_conformance.allowed(case) for case in cases}
    assert {name: found for name, found in apart.items() if found > steps[name]} == {}


@pytest.mark.slow
@needs_emulator
@micro_conformance.needs_ready_made
def test_what_the_ready_made_interpreter_lacks_is_refused_by_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tree.VARIABLE, tflm_image.PACKAGE)
    for case in (case for case in CASES if not as_today(case)):
        model = micro_conformance.opened([case], tmp_path / "net.tflite")
        given = [list(sample.values()) for sample in micro_conformance.inputs(model, 1)]
        with pytest.raises(RuntimeError, match=case.operator.split()[0]):
            micro_conformance.on_core("cortex-m55", "tflm", tmp_path / "net.tflite", model.signature, given, tmp_path / case.name)


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("core", micro_conformance.CORES)
def test_generated_c_equals_the_reference_on_a_core(tmp_path: Path, core: str) -> None:
    apart = micro_conformance.cores_apart(core, CASES, tmp_path / "made")
    layers = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "AVERAGE_POOL_2D", "MAX_POOL_2D", "RESHAPE", "PAD"}
    assert {f"{name} int8" for name in layers} <= apart.keys()
    steps = {case.name: micro_conformance.allowed(case) for case in CASES}
    assert all(found <= steps[name] for name, found in apart.items())
