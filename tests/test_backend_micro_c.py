from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import packager
from edgekit.backends.micro_c import softmax
from edgekit.errors import ConversionError
from tests import micro_nets

pytest.importorskip("bakenn")
pytest.importorskip("tflite_micro")
pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))) and not os.environ.get("CI"), reason="no C compiler here")

_ABSENT = [name for name in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(name) is None]
needs_emulator = pytest.mark.skipif(bool(_ABSENT) and not os.environ.get("CI"), reason=f"not installed here: {', '.join(_ABSENT)}")


def package(model: Path, tmp_path: Path, target: str = "mcu-cortex-m4-c") -> packager.Outcome:
    (tmp_path / "out").mkdir(exist_ok=True)
    return packager.package(str(model), target, packager.Options(out=tmp_path / "out", rebuild=True))


@pytest.mark.parametrize(("scale", "beta"), [(0.08, 1.0), (0.5, 1.0), (0.003, 1.0), (0.1, 2.5)])
def test_softmax_equals_the_reference_kernel(tmp_path: Path, scale: float, beta: float) -> None:
    """The table and the C, as Python integers: every difference to the maximum, and random rows."""
    depth = 37
    path = micro_nets.softmax_alone(tmp_path / "s.tflite", scale, beta, depth)
    rng = np.random.default_rng(0)
    rows = [rng.integers(-128, 128, (1, depth)).astype(np.int8) for _ in range(40)]
    rows += [np.clip(np.arange(depth) * step + start, -128, 127).astype(np.int8)[None] for step in (1, 7) for start in (-128, 0, 90)]
    compiled = compile_softmax(tmp_path, beta, scale, depth)
    for row, wanted in zip(rows, micro_nets.reference(path, rows), strict=True):
        np.testing.assert_array_equal(compiled(row), wanted)


def compile_softmax(folder: Path, beta: float, scale: float, depth: int) -> Callable[[Any], Any]:
    import ctypes
    import subprocess

    source = "#include <stdint.h>\n" + softmax.code(beta, scale, 0) + "void run(int8_t *x, int32_t n) { softmax_0(x, 1, n); }\n"
    (folder / "s.c").write_text(source)
    compiler = next(found for name in ("cc", "gcc", "clang") if (found := shutil.which(name)))
    strict = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *strict, str(folder / "s.c"), "-o", str(folder / "s.so")], check=True)
    library = ctypes.CDLL(str(folder / "s.so"))

    def run(row: Any) -> Any:
        buffer = ctypes.create_string_buffer(row.tobytes(), row.size)
        library.run(buffer, ctypes.c_int32(depth))
        return np.frombuffer(buffer.raw, np.int8).reshape(row.shape)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("target", "flat"), [("mcu-cortex-m4-c", True), ("mcu-cortex-m0plus-c", False)])
def test_the_c_equals_the_reference_kernels_and_is_weighed_beside_tflm(tmp_path: Path, target: str, flat: bool) -> None:
    """Old operator versions, no ReshapeOptions, a dense layer without bias (and of a map), LOGISTIC and SOFTMAX at the end: all prepared."""
    outcome = package(micro_nets.classifier(tmp_path / "net.tflite", versions=1, extra="LOGISTIC", flat=flat), tmp_path, target)
    assert outcome.passed
    assert any("to the byte" in notice for notice in outcome.manifest.notices)
    said = next(notice for notice in outcome.manifest.notices if "TFLM: flash" in notice)
    assert "generated C needs less flash and SRAM" in said
    assert all(part.kind == "measured" for part in outcome.manifest.usage.parts if part.category == "model") or _ABSENT


@pytest.mark.slow
@pytest.mark.parametrize("flat", [False, True])
def test_channels_first_become_channels_last_in_c(tmp_path: Path, flat: bool) -> None:
    """Transposes at both ends, which the generator has no form for: packaging compares the C with the reference kernels."""
    outcome = package(micro_nets.channels_first(tmp_path / "net.tflite", flat=flat), tmp_path)
    assert outcome.passed
    assert outcome.manifest.signature.inputs[0].shape == ((1, 3, 64) if flat else (1, 3, 8, 8))
    assert any("equals LiteRT's reference kernels to the byte" in notice for notice in outcome.manifest.notices)


@pytest.mark.slow
@needs_emulator
def test_channels_first_on_an_emulated_core(tmp_path: Path) -> None:
    from edgekit import device, tester

    outcome = package(micro_nets.channels_first(tmp_path / "net.tflite"), tmp_path)
    assert outcome.bundle
    report = tester.test(outcome.bundle, [device.parse("virtual:cortex-m4")]).reports[0]
    assert report.failure is None
    (against_host, *_) = (output for comparison in report.comparisons if comparison.against == "host" for output in comparison.outputs)
    assert against_host.max_abs == 0


def test_an_operator_that_cannot_be_generated_is_refused_by_name(tmp_path: Path) -> None:
    from tests.tflite_build import Net

    net = Net()
    x, y, z = (net.tensor(name, (1, 4), "int8", scale=0.1) for name in "xyz")
    net.add("ABS", [x], [y])
    net.add("NEG", [y], [z])
    (tmp_path / "net.tflite").write_bytes(net.pack([x], [z]))
    with pytest.raises(ConversionError, match=r"ABS \(y\) cannot be generated as C"):
        package(tmp_path / "net.tflite", tmp_path)


def test_two_inputs_are_refused_with_the_way_that_takes_them(tmp_path: Path) -> None:
    from tests.tflite_build import Net

    net = Net()
    x, y, z = (net.tensor(name, (1, 4), "int8", scale=0.1) for name in "xyz")
    net.add("ADD", [x, y], [z], version=2, table="AddOptions")
    (tmp_path / "net.tflite").write_bytes(net.pack([x, y], [z]))
    with pytest.raises(ConversionError, match="2 inputs and 1 outputs; generated C takes one of each") as caught:
        package(tmp_path / "net.tflite", tmp_path)
    assert "without -c" in (caught.value.hint or "")


def test_a_dynamic_range_model_is_refused_by_operator(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"FULLY_CONNECTED .* int8 weights beside float activations"):
        package(micro_nets.dynamic_range(tmp_path / "dyn.tflite"), tmp_path)


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m55"])
def test_an_emulated_core_equals_the_host(tmp_path: Path, core: str) -> None:
    from edgekit import device, tester

    outcome = package(micro_nets.classifier(tmp_path / "net.tflite"), tmp_path, f"mcu-{core}-c")
    assert outcome.bundle
    report = tester.test(outcome.bundle, [device.parse(f"virtual:{core}")]).reports[0]
    assert report.failure is None
    against_host = [output for comparison in report.comparisons if comparison.against == "host" for output in comparison.outputs]
    assert against_host and all(output.max_abs == 0 for output in against_host)


@pytest.mark.parametrize(
    ("flash", "sram", "said"),
    [(None, None, ""), (100, 100, "; both fit"), (15, None, "; only one fits"), (None, 10, "; only two fits"), (5, 5, "; neither fits")],
)
def test_which_way_fits_is_said_where_memory_is_limited(flash: int | None, sram: int | None, said: str) -> None:
    from edgekit.backends.micro_c import weigh
    from edgekit.budget import Limits

    limits = Limits(max_flash_bytes=flash, max_sram_bytes=sram)
    needs = "one needs less flash, two needs less SRAM and instructions"
    found = weigh.compared(weigh.Way("one", 10, 20, 2000), weigh.Way("two", 20, 10, 1000, flash_kind="estimated"), limits)
    assert found == f"one: flash 10 bytes, SRAM 20, 2,000 instructions; two: flash 20 bytes (estimated), SRAM 10, 1,000 instructions: {needs}{said}"


def test_what_was_not_counted_is_not_compared() -> None:
    from edgekit.backends.micro_c import weigh
    from edgekit.budget import Limits

    said = weigh.compared(weigh.Way("one", 10, 10, 2000), weigh.Way("two", 10, 10, uncounted="no source"), Limits())
    assert said.endswith("instructions not counted (no source): they need the same")


@pytest.mark.slow
@needs_emulator
def test_instructions_of_an_inference_are_counted_on_the_emulated_core(tmp_path: Path) -> None:
    from edgekit import device, tester

    micro_nets.classifier(tmp_path / "net.tflite")
    np.savez(tmp_path / "data.npz", image=np.random.default_rng(1).normal(size=(8, 8, 8, 3)).astype(np.float32))
    options = packager.Options(out=tmp_path, rebuild=True, calibration=str(tmp_path / "data.npz"))
    outcome = packager.package(str(tmp_path / "net.tflite"), "mcu-cortex-m0plus-c", options)
    assert outcome.bundle
    (said,) = (notice for notice in outcome.manifest.notices if notice.startswith("generated C: "))
    counted = int(said.split(" instructions")[0].rpartition(", ")[2].replace(",", ""))
    (found,) = tester.test(outcome.bundle, [device.parse("virtual:cortex-m0")]).reports
    assert found.conditions and abs(found.conditions.counters["instructions"] - counted) < 0.05 * counted


@pytest.mark.parametrize(
    ("target", "said"), [("mcu-cortex-m0plus-c", "virtual:cortex-m0"), ("mcu-cortex-m55", "virtual:cortex-m55"), ("mcu-esp32s3", "local:")]
)
def test_the_device_that_is_named_next_is_one_that_runs_it(target: str, said: str) -> None:
    from edgekit.cli import package_view
    from edgekit.target import load

    assert package_view._core(load(target)) == said
