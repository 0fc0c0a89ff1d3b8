"""Microcontrollers from the command line: package, limits, emulated cores, a serial line, a C library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import bundle, device, packager, resources, tester
from edgekit.errors import ConversionError
from edgekit.formats import tflite
from tests import micro_conformance, micro_nets
from tests.e2e.cli import edgekit
from tests.micro_nets import before_the_sigmoid
from tests.serial_lines import firmware, noisy

pytest.importorskip("bakenn")
pytest.importorskip("tflite_micro")
pytestmark = pytest.mark.slow
_ABSENT = [name for name in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(name) is None]
needs_emulator = pytest.mark.skipif(bool(_ABSENT) and not os.environ.get("CI"), reason=f"not installed here: {', '.join(_ABSENT)}")


@needs_emulator
def test_one_bundle_on_every_core(tmp_path: Path) -> None:
    micro_nets.classifier(tmp_path / "net.tflite", extra="LOGISTIC")
    made = edgekit("package", "net.tflite", "--target", "mcu-cortex-m4-c", "--board", "nrf52840", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "TFLM: flash" in made.stderr and "generated C needs less flash and SRAM; both fit" in made.stderr
    cores = [part for core in ("m3", "m7", "m33") for part in ("--device", f"virtual:cortex-{core}")]
    done = edgekit("test", "net-mcu-cortex-m4-c.edgekit", *cores, "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "instructions an inference" in done.stdout and "stack reserved" in done.stdout
    assert " ms" not in done.stdout, "an emulated core has no time"
    reports = json.loads((tmp_path / "run.json").read_text())["reports"]
    assert len(reports) == 3
    for report in reports:
        (host,) = (found for found in report["comparisons"] if found["against"] == "host")
        assert all(output["max_abs"] == 0 for output in host["outputs"])
        counters = report["conditions"]["counters"]
        assert 0 < counters["stack_bytes"] < 4096 and counters["instructions"] > 10_000


def test_too_little_sram_is_exit_1_with_the_operator_at_the_peak(tmp_path: Path) -> None:
    micro_nets.classifier(tmp_path / "net.tflite")
    done = edgekit("package", "net.tflite", "--target", "mcu-cortex-m4", "--max-sram", "6KB", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "DEPTHWISE_CONV_2D (b) needs the most: 1,024 bytes" in done.stderr
    assert "fewer channels there" in done.stderr and "--max-sram 9KB" in done.stderr
    assert not list(tmp_path.glob("*.edgekit"))


@needs_emulator
@pytest.mark.parametrize("name", ["wake-word-alexa", "wake-word-hey-jarvis"])
def test_a_stream_of_50_steps_equals_litert_on_the_core(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    micro_conformance.give_interpreter("cortex-m55", monkeypatch)
    fetch = pytest.importorskip("tests.zoo.fetch")
    path = before_the_sigmoid(Path(fetch.path(name)), tmp_path / "logit.tflite")
    model = tflite.open(str(path), {})
    spec, out = model.signature.inputs[0], model.signature.outputs[0]
    steps = np.random.default_rng(5).integers(-25, 26, (50, *spec.shape))
    walk = np.clip(np.cumsum(steps, axis=0), -128, 127).astype(np.int8)
    session = tflite.session(model, reference_kernels=True, keep_state=True)
    wanted = [session.run({spec.name: x})[out.name] for x in walk]
    found = micro_conformance.on_core("cortex-m55", "tflm", path, model.signature, [[x] for x in walk], tmp_path / "run")
    assert len(np.unique(wanted)) > 5
    for step, (one, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(one[out.name], other, err_msg=f"step {step}")


def test_a_bundle_carries_a_stream_and_every_step_is_compared(tmp_path: Path) -> None:
    fetch = pytest.importorskip("tests.zoo.fetch")
    path = before_the_sigmoid(Path(fetch.path("wake-word-alexa")), tmp_path / "logit.tflite")
    spec = tflite.open(str(path), {}).signature.inputs[0]
    steps = np.abs(np.cumsum(np.random.default_rng(5).normal(0, 1.5, (50, *spec.shape[1:])), axis=0)).astype(np.float32)
    np.savez(tmp_path / "stream.npz", **{spec.name: steps})
    made = packager.package(str(path), "mcu-cortex-m4", packager.Options(out=tmp_path, rebuild=True, calibration=str(tmp_path / "stream.npz")))
    assert made.bundle
    (found,) = tester.test(made.bundle, [device.parse("virtual:cortex-m4")]).reports
    own = next(c for c in found.comparisons if c.against == "host" and len(c.samples) == 50)
    assert not found.failure and all(output.max_abs == 0 for output in own.outputs)
    with bundle.open(made.bundle) as opened:
        made_steps = [float(opened.golden("host", step, 0).reshape(-1)[0]) for step in range(50)]
    assert len(set(made_steps)) > 5


@pytest.mark.skipif(shutil.which("gcc") is None and not os.environ.get("CI"), reason="gcc is not installed here")
def test_a_bundle_over_a_noisy_serial_line(tmp_path: Path) -> None:
    """The firmware's own peer with the bundle's model, as a process behind two ptys that lose, flip and repeat bytes."""
    micro_nets.classifier(tmp_path / "net.tflite")
    made = packager.package(str(tmp_path / "net.tflite"), "mcu-cortex-m0plus-c", packager.Options(out=tmp_path, rebuild=True)).bundle
    assert made
    with firmware(peer(made, tmp_path), noisy(7), noisy(8)) as (port, _):
        report = tester.test(made, [device.parse(f"serial:{port}?answer_s=0.1&attempts=60")]).reports[0]
    assert report.failure is None, report.failure
    against_host = [output for found in report.comparisons if found.against == "host" for output in found.outputs]
    assert against_host and all(output.max_abs == 0 for output in against_host)


def peer(made: Path, folder: Path) -> Path:
    with bundle.open(made) as opened:
        opened.extract(opened.manifest.artifact.main, folder)
        model = folder / Path(opened.manifest.artifact.main).name
    source, program = resources.directory("apps") / "mcu", folder / "peer"
    files = [*(source / name for name in ("link.c", "frame.c", "uart_host.c")), *model.rglob("*.c")]
    subprocess.run(["gcc", "-std=gnu11", "-O1", f"-I{model}", f"-I{source}", *map(str, files), "-lm", "-o", str(program)], check=True)
    return program


def test_sixteen_bit_activations_where_they_are_asked_for(tmp_path: Path) -> None:
    path = micro_nets.wide(tmp_path / "wide.tflite")
    options = packager.Options(out=tmp_path, rebuild=True, precision="w8a16")
    outcome = packager.package(str(path), "mcu-cortex-m4", options)
    assert outcome.passed and outcome.manifest.signature.inputs[0].dtype == "int16"
    with pytest.raises(ConversionError, match="int16 activation"):
        packager.package(str(path), "mcu-cortex-m4-c", packager.Options(out=tmp_path, rebuild=True))


def looped() -> Any:
    import keras

    keras.utils.set_random_seed(2)
    given = keras.layers.Input(batch_shape=(1, 6, 4))
    return keras.Model(given, keras.layers.Dense(3)(keras.layers.LSTM(5)(given)))


def steps() -> Any:
    return list(np.random.default_rng(1).normal(0, 1, (12, 1, 6, 4)).astype(np.float32))


def test_a_loop_is_refused_by_operator_before_it_is_quantized(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    options = packager.Options(out=tmp_path, rebuild=True, calibration="tests.e2e.test_mcu:steps")
    with pytest.raises(ConversionError, match=r"WHILE \(.*lstm.*\) is a loop") as caught:
        packager.package("tests.e2e.test_mcu:looped", "mcu-cortex-m4", options)
    assert "one step" in (caught.value.hint or "")
