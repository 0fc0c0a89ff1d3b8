from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import resources
from edgekit.errors import EdgekitError, MissingPackageError, UsageError
from edgekit.formats import tflite
from edgekit.job import Job, Result, TensorFile, read_result
from edgekit.tensors import TensorSpec, write_raw
from edgekit.virtual.cortex_m import build, elf, tflm, tflm_image
from edgekit.virtual.cortex_m.boards import BOARDS
from tests import jobs, micro_conformance, micro_models, micro_nets

OUTPUTS = (TensorSpec("total", (1,), "int32"), TensorSpec("y", (3,), "int8"))
SAMPLES = [(np.array([1, -2, 127], np.int8), np.array([[3, 5 * i]], np.int32)) for i in range(1, 5)]

_ABSENT = [name for name in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(name) is None]
needs_emulator = pytest.mark.skipif(bool(_ABSENT) and not os.environ.get("CI"), reason=f"not installed here: {', '.join(_ABSENT)}")


def job(folder: Path, artifact: Path, core: str, **fields: Any) -> Path:
    shutil.copytree(artifact, folder / "model")
    samples = []
    for i, (a, b) in enumerate(SAMPLES):
        write_raw(folder / f"{i}a.raw", a)
        write_raw(folder / f"{i}b.raw", b)
        # not in the model's order: names decide
        samples.append((TensorFile("b", "int32", (1, 2), f"{i}b.raw"), TensorFile("a", "int8", (3,), f"{i}a.raw")))
    jobs.contract.write(folder, Job("micro-c", "model", tuple(samples), OUTPUTS, accelerator=core, min_runs=0, **fields))
    return folder


def run(tmp_path: Path, core: str = "cortex-m4", more: str = "", name: str = "a", **fields: Any) -> tuple[Result, Path]:
    artifact = micro_models.accumulator(tmp_path / name / "made", more)
    result = tmp_path / name / "result"
    return jobs.execute(jobs.PYTHON, job(tmp_path / name / "job", artifact, core, **fields), result)[1], result


def section(name: int, kind: int, flags: int, size: int) -> bytes:
    return struct.pack("<10I", name, kind, flags, 0, 0, size, 0, 0, 0, 0)


def test_elf_sizes_are_added_by_where_a_section_lives(tmp_path: Path) -> None:
    names = b"\0.text\0.data\0.bss\0.stack\0.debug\0"
    at = {name: names.index(b"\0" + name + b"\0") + 1 for name in (b".text", b".data", b".bss", b".stack", b".debug")}
    table = [
        section(0, 0, 0, 0),
        section(at[b".text"], 1, 6, 1000),
        section(at[b".data"], 1, 3, 20),
        section(at[b".bss"], 8, 3, 300),
        section(at[b".stack"], 8, 3, 4096),
        section(at[b".debug"], 1, 0, 9999),
        struct.pack("<10I", 0, 3, 0, 0, 52, len(names), 0, 0, 0, 0),
    ]
    head = b"\x7fELF\x01\x01\x01".ljust(32, b"\0") + struct.pack("<I", 52 + len(names)) + b"\0" * 10 + struct.pack("<3H", 40, 7, 6)
    file = tmp_path / "f.elf"
    file.write_bytes(head + names + b"".join(table))
    assert elf.sizes(file) == elf.Sizes(flash_bytes=1020, sram_bytes=320, stack_reserved_bytes=4096)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(EdgekitError, match="truncated"):
        elf.sizes(file)
    file.write_bytes(b"MZ" + bytes(100))
    with pytest.raises(EdgekitError, match="ELF"):
        elf.sizes(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"interface": 2, "inputs": [], "outputs": []}',
        '{"interface": 1, "inputs": [], "outputs": []}',
        pytest.param('{"x": ' + "[" * 100_000, id="nested"),
    ],
)
def test_a_malformed_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / build.MODEL_FILE).write_text(text)
    with pytest.raises(EdgekitError):
        build.read_model(tmp_path)


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("core", sorted(BOARDS))
def test_a_core_computes_every_sample_and_keeps_state(tmp_path: Path, core: str) -> None:
    result, folder = run(tmp_path, core)
    assert result.status == "ok", result.error
    made = jobs.outputs(folder, result)
    assert [x["total"].tolist() for x in made] == [[15], [45], [90], [150]]
    assert all(x["y"].tolist() == [-1, 2, -127] for x in made)
    counters = result.counters
    assert 0 < counters["stack_bytes"] < 2048
    assert counters["stack_reserved_bytes"] == build.STACK_BYTES
    assert 1000 < counters["flash_bytes"] < 20000
    assert 0 < counters["sram_bytes"] < 4096
    again, _ = run(tmp_path, core, name="b")
    assert again.counters == counters


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m4", "cortex-m33", "cortex-m55"])
def test_instructions_are_counted_beyond_the_timers_wrap(tmp_path: Path, core: str) -> None:
    turns = 400_000_000  # two instructions a turn: 800 M, past 2**24 ticks of every board
    spin = f'uint32_t n = {turns}u; __asm__ volatile(".syntax unified\\n1: subs %0, #1\\n bne 1b" : "+r"(n) : : "cc");'
    result, _ = run(tmp_path, core, f"if (b[1] == 5) {{ {spin} }} else {{ uint32_t n = 10000000u; {spin.partition(';')[2]} }}")
    assert result.status == "ok", result.error
    assert result.counters["instructions"] == pytest.approx(20_000_000, abs=300)
    only, _ = run(tmp_path, core, spin, "long")
    assert only.counters["instructions"] == pytest.approx(2 * turns, abs=1000)


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize(
    ("more", "stage", "error"),
    [
        ("if (b[1] == 10) return -7;", "invoke", "error -7"),
        ("if (b[1] == 10) *(volatile int *)0xF0000000u = 1;", "invoke", "fault"),
        ("volatile char deep[40000]; for (int i = 0; i < 40000; i++) deep[i] = 1;", "invoke", "stack|fault"),
        ("syntax error;", "prepare", "does not compile"),
        ("static char big[8u << 20]; big[b[1]] = 1; y[0] = big[b[0]];", "prepare", "does not fit"),
    ],
)
def test_what_goes_wrong_has_its_stage(tmp_path: Path, more: str, stage: str, error: str) -> None:
    import re

    result, _ = run(tmp_path, more=more)
    assert (result.status, result.stage) == ("failed", stage)
    assert re.search(error, result.error), result.error


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize(("core", "status"), [("cortex-m0", "failed"), ("cortex-m3", "ok")])
def test_an_odd_address_faults_where_the_chip_would(tmp_path: Path, core: str, status: str) -> None:
    """Armv6-M takes no word from an odd address, which is what an unaligned model array asks for; Armv7-M does."""
    more = "static char place[8]; volatile uintptr_t at = (uintptr_t)place; y[0] = (int8_t)*(volatile int32_t *)(at + 1);"
    result, _ = run(tmp_path, core, more)
    assert result.status == status and ("fault" in (result.error or "")) == (status == "failed")


@pytest.mark.slow
@needs_emulator
def test_stack_is_measured(tmp_path: Path) -> None:
    result, _ = run(tmp_path, more="volatile char deep[10000]; for (int i = 0; i < 10000; i++) deep[i] = 1;")
    assert 10_000 <= result.counters["stack_bytes"] < 11_000


@pytest.mark.parametrize("fields", [{"core": "cortex-m99"}, {"options": {"stack_bytes": "7"}}, {"options": {"odd": "1"}}])
def test_an_unknown_core_or_option_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    result, _ = run(tmp_path, **fields)
    assert (result.status, result.stage) == ("failed", "prepare")


@pytest.mark.skipif(shutil.which("cmake") is None and not os.environ.get("CI"), reason="no cmake here")
@pytest.mark.slow
def test_cmake_builds_the_peer_of_a_model(tmp_path: Path) -> None:
    model = micro_models.accumulator(tmp_path / "made")
    (model / "edgekit_model.h").write_text((model / "edgekit_model.h").read_text() + "\n#define EDGEKIT_BUFFER_BYTES 64u\n")
    source = resources.directory("apps") / "mcu"
    subprocess.run(["cmake", "-S", str(source), "-B", "build", f"-DEDGEKIT_MODEL={model}"], cwd=tmp_path, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", "build"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "build/uart_host").is_file()
    failed = subprocess.run(["cmake", "-S", str(source), "-B", "other"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode != 0 and "names no folder" in failed.stderr


ZEPHYR = {
    "device.h": "struct device; int device_is_ready(const struct device *); extern const struct device stand_in;\n"
    "#define DT_CHOSEN(name) name\n#define DEVICE_DT_GET(node) (&stand_in)\n",
    "drivers/uart.h": "struct device; int uart_poll_in(const struct device *, unsigned char *);\n"
    "void uart_poll_out(const struct device *, unsigned char);\n",
    "kernel.h": "#include <stdint.h>\nuint32_t k_cycle_get_32(void);\n",
}
"""Declarations of the few functions of Zephyr that the application calls, as its reference gives them."""


@pytest.mark.skipif(shutil.which("gcc") is None and not os.environ.get("CI"), reason="no C compiler here")
def test_the_zephyr_application_is_sound_c(tmp_path: Path) -> None:
    for name, text in ZEPHYR.items():
        (tmp_path / "zephyr" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "zephyr" / name).write_text(text)
    source = resources.directory("apps") / "mcu"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run(["gcc", *strict, f"-I{tmp_path}", f"-I{source}", str(source / "zephyr/main.c")], check=True)


def test_a_folder_that_is_no_source_tree_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tflm.VARIABLE, raising=False)
    assert tflm.tree() is None
    monkeypatch.setenv(tflm.VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match="holds no tensorflow/lite/micro"):
        tflm.tree()


def test_the_ready_made_interpreter_is_that_of_one_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tflm.VARIABLE, tflm_image.PACKAGE)
    assert tflm.tree() is None and [core for core in BOARDS if tflm.on_core(core)] == ["cortex-m55"]
    monkeypatch.setattr(tflm_image, "PACKAGE", "no-such-package")
    with pytest.raises(MissingPackageError, match="not installed"):
        tflm_image.path()
    (tmp_path / "other.axf").write_bytes(b"another build")
    monkeypatch.setattr(tflm_image, "PACKAGE", "edgekit")
    monkeypatch.setattr(tflm_image, "_FILE", str(tmp_path / "other.axf"))
    with pytest.raises(MissingPackageError, match="not the one of release"):
        tflm_image.path()


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("core", sorted(BOARDS))
def test_the_interpreter_runs_on_the_core(tmp_path: Path, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    micro_conformance.give_interpreter(core, monkeypatch)
    path = micro_nets.classifier(tmp_path / "net.tflite")
    signature = tflite.open(str(path), {}).signature
    inputs = np.random.default_rng(4).integers(-128, 128, (3, *signature.inputs[0].shape)).astype(np.int8)
    found = micro_conformance.on_core(core, "tflm", path, signature, [[x] for x in inputs], tmp_path / "run")
    np.testing.assert_array_equal([x["scores"] for x in found], micro_nets.reference(path, inputs))
    counters = read_result(tmp_path / "run/result").counters
    assert counters["instructions"] > 10_000 and counters["arena_bytes"] > 512
    assert ("flash_bytes" in counters) == (tflm.tree() is not None), "of a ready-made interpreter it says nothing"
    assert counters.get("flash_bytes", 1 << 20) > path.stat().st_size


def test_what_was_compiled_for_an_npu_is_refused_on_a_core_without_one(tmp_path: Path) -> None:
    path = micro_nets.classifier(tmp_path / "net.tflite")
    signature = tflite.open(str(path), {}).signature
    with pytest.raises(RuntimeError, match="no NPU is at hand"):
        micro_conformance.on_core("cortex-m55", "tflm-ethos-u", path, signature, [[np.zeros((1, 8, 8, 3), np.int8)]], tmp_path / "run")


def semihosting(operation: int, *block: str) -> str:
    """C that asks the emulator's host for something."""
    asked = f"const uintptr_t block[] = {{{', '.join(block)}}};"
    registers = f'register long r0 __asm__("r0") = {operation}; register const void *r1 __asm__("r1") = block;'
    return f'{asked} {registers} __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");'


@pytest.mark.slow
@needs_emulator
def test_firmware_reaches_nothing_of_this_machine(tmp_path: Path) -> None:
    described = subprocess.run(["qemu-system-arm", "-help"], capture_output=True, text=True, check=False).stdout
    if "-sandbox" in described:
        command = f'static const char text[] = "touch {tmp_path}/made";'
        result, _ = run(tmp_path, more=f"{command} {semihosting(0x12, '(uintptr_t)text', 'sizeof text - 1')}", name="system")
        assert (result.status, (tmp_path / "made").exists()) == ("failed", False)
    if os.geteuid() == 0:
        (tmp_path / "mine").write_text("kept")
        name = f'static const char text[] = "{tmp_path}/mine";'
        run(tmp_path, more=f"{name} {semihosting(0x01, '(uintptr_t)text', '4', 'sizeof text - 1')}", name="open")
        assert (tmp_path / "mine").read_text() == "kept"
