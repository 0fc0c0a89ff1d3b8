from __future__ import annotations

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit import budget, target
from edgekit.budget import Limits, Part, Usage, binaries, breakdown, catalogue
from edgekit.errors import UsageError
from edgekit.formats import tflite
from tests.native_libraries import aar, elf
from tests.zoo import fetch


@pytest.mark.parametrize(("text", "count"), [("25MB", 25_000_000), ("5.4MB", 5_400_000), ("256KB", 256_000), ("1MiB", 1_048_576), ("1.5 kib", 1536),
                                             ("4096", 4096), ("0", 0), ("2GB", 2 * 10**9)])  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert budget.parse_size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "25 MBit", "1e6", "25,4MB"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        budget.parse_size(text)


def test_sizes_print_exact_bytes_and_megabytes() -> None:
    assert budget.format_size(5_400_000) == "5,400,000 bytes (5.40 MB)"


MODEL = Part("m.tflite", "model", 18_000_000, 16_000_000, "measured")
RUNTIME = Part("libLiteRt.so", "runtime", 6_000_000, 2_400_000, "estimated")
ARENA = Part("arena", "arena", 9_000_000, 0, "measured")


def test_limits_bind_model_and_total_apart() -> None:
    usage = Usage((MODEL, RUNTIME, ARENA))
    assert (usage.model_bytes, usage.total_bytes(), usage.total_bytes("download")) == (18_000_000, 24_000_000, 18_400_000)
    assert budget.check(usage, Limits()) == ()
    assert budget.check(usage, Limits(max_total_bytes=24_000_000, max_model_bytes=18_000_000)) == ()
    (total,) = budget.check(usage, Limits(max_total_bytes=20_000_000))
    assert (total.what, total.over_bytes, total.kind) == ("total", 4_000_000, "estimated")
    assert "24,000,000 bytes (24.00 MB)" in total.message and total.needed == "--max-size 24.00MB"
    assert budget.check(usage, Limits(max_total_bytes=20_000_000, size_of="download")) == ()
    (model,) = budget.check(usage, Limits(max_model_bytes=5_400_000, size_of="download"))
    assert (model.what, model.used_bytes, model.needed) == ("model", 18_000_000, "--max-model-size 18.00MB")


@given(st.integers(0, 10**10))
def test_the_option_that_is_offered_would_pass(used: int) -> None:
    usage = Usage((Part("m", "model", used, used, "measured"),))
    for limits in (Limits(max_total_bytes=used - 1), Limits(max_model_bytes=used - 1)):
        for excess in budget.check(usage, limits):
            assert budget.parse_size(excess.needed.split()[1]) >= used


def test_model_bytes_are_measured_raw_and_deflated(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "m.tflite").write_bytes(data)
    part = budget.model_part(tmp_path / "m.tflite")
    assert part.name == "m.tflite"
    assert budget.usage(tmp_path / "m.tflite", name="model (w8)").parts[0].name == "model (w8)"
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    assert (part.installed_bytes, part.download_bytes) == (len(data), len(packer.compress(data) + packer.flush()))
    folder = tmp_path / "m.mlpackage"
    (folder / "Data").mkdir(parents=True)
    for name in ("a", "Data/b"):
        (folder / name).write_bytes(data)
    assert budget.model_part(folder).installed_bytes == 2 * len(data)


def test_the_catalogue_gives_runtime_and_glue_with_kind_and_source() -> None:
    parts = budget.runtime_parts(target.load("android-arm64"))
    assert {p.category for p in parts} == {"runtime", "glue"} and all(p.source for p in parts)
    assert Usage(parts).kind() == "estimated" and 5e6 < Usage(parts).total_bytes() < 8e6
    assert {p.kind for p in budget.runtime_parts(target.load("linux-arm64"))} == {"measured"}
    gpu = budget.runtime_parts(target.load("android-arm64-gpu"))
    assert Usage(gpu).total_bytes() > Usage(parts).total_bytes()


def test_a_size_that_is_not_known_is_said() -> None:
    with pytest.raises(UsageError, match="is not known") as caught:
        catalogue.runtime_rows("litert", "android-mips", "cpu")
    assert "--runtime-aar" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no size catalogue") as wrong:
        catalogue.load("litrt")
    assert wrong.value.hint == "did you mean litert?"


@pytest.mark.parametrize("name", ["litert", "onnxruntime", "coreml"])
def test_every_row_of_the_catalogues_has_a_source_or_is_the_system_s(name: str) -> None:
    found = catalogue.load(name)
    for row in found.rows:
        assert row.source in found.sources or row.installed_bytes == 0, row
        assert row.installed_bytes is not None or row.download_bytes is not None


def test_a_given_aar_is_measured_for_its_abi_only(tmp_path: Path) -> None:
    path = aar(tmp_path / "r.aar", arm64_v8a=elf(text=50_000), x86_64=elf(62, text=90_000))
    parts = budget.runtime_parts(target.load("android-arm64"), path)
    assert [(p.name, p.category, p.kind) for p in parts] == [("libfoo.so", "runtime", "measured"), ("classes.jar", "glue", "measured")]
    assert parts[0].installed_bytes == len(elf(text=50_000)) and parts[0].download_bytes < 2000 and not parts[0].note
    with pytest.raises(UsageError, match="no library for armeabi-v7a") as caught:
        binaries.runtime_in(path, "armeabi-v7a")
    assert caught.value.hint == "it holds arm64-v8a, x86_64"


@pytest.mark.parametrize(("share", "said"), [(0.5, False), (0.95, True), (1.2, True)])
def test_a_runtime_that_was_not_trimmed_is_told_from_one_that_was(share: float, said: bool, tmp_path: Path) -> None:
    phone = target.load("android-arm64")
    full = sum(p.installed_bytes for p in budget.runtime_parts(phone) if p.category == "runtime")
    (tmp_path / "libfoo.so").write_bytes(elf(text=int(share * full)))
    assert ["the full one" in p.note for p in budget.runtime_parts(phone, tmp_path / "libfoo.so")] == [said, False]


def test_debug_information_is_told_with_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "libfoo.so").write_bytes(elf(debug=100_000))
    (part,) = binaries.runtime_in(tmp_path / "libfoo.so", "arm64-v8a")
    assert "not stripped: 100,000 of" in part.note and "10,000 symbol tables" in part.note
    assert binaries.read_elf(elf(debug=100_000)).removable_bytes == 110_000


@pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("strip") is None, reason="no compiler")
def test_what_stripping_would_remove_is_what_strip_removes(tmp_path: Path) -> None:
    body = "struct point {{ double a, b; }} p = {{x, {0}}}; return p.a * p.b;"
    functions = "\n".join(f"double function_number_{i}(double x) {{ {body.format(i)} }}" for i in range(300))
    (tmp_path / "foo.c").write_text(functions)
    subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-o", "libfoo.so", "foo.c"], cwd=tmp_path, check=True)
    whole = (tmp_path / "libfoo.so").read_bytes()
    subprocess.run(["strip", "libfoo.so"], cwd=tmp_path, check=True)
    stripped = (tmp_path / "libfoo.so").read_bytes()
    assert len(whole) - len(stripped) == pytest.approx(binaries.read_elf(whole).removable_bytes, rel=0.05)
    assert binaries.read_elf(stripped).removable_bytes == 0


def test_a_real_library_is_read() -> None:
    import ai_edge_litert

    library = Path(ai_edge_litert.__file__).parent / "libLiteRt.so"
    found = binaries.read_elf(library.read_bytes())
    assert found.machine in (62, 183) and found.debug_bytes == 0


@pytest.mark.parametrize(("data", "words"), [
    (b"!<arch>\n" + bytes(100), "static archive"),
    (elf(62), "another processor"),
    (elf()[:5200], "cut off"),
    (b"\x7fELF", "cut off"),
    (b"hello", "neither a shared library nor"),
    (b"", "neither a shared library nor"),
])  # fmt: skip
def test_what_is_not_a_runtime_library(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "libfoo.so").write_bytes(data)
    with pytest.raises(UsageError, match=words):
        binaries.runtime_in(tmp_path / "libfoo.so", "arm64-v8a")


def test_zip_bombs_and_damaged_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="zip bomb"):
        binaries.runtime_in(aar(tmp_path / "bomb.aar", arm64_v8a=bytes(50_000_000)), "arm64-v8a")
    whole = aar(tmp_path / "r.aar", arm64_v8a=elf()).read_bytes()
    (tmp_path / "cut.aar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError):
        binaries.runtime_in(tmp_path / "cut.aar", "arm64-v8a")
    at = whole.index(b"libfoo.so") + 30
    (tmp_path / "bad.aar").write_bytes(whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :])
    with pytest.raises(UsageError, match="damaged"):
        binaries.runtime_in(tmp_path / "bad.aar", "arm64-v8a")


def test_layers_account_for_every_byte() -> None:
    path = fetch.path("face-detection-short-range")
    graph = tflite.graph(path)
    rows = breakdown.layers(graph)
    assert sum(row.constant_bytes for row in rows) == path.stat().st_size == graph.file_bytes
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert rows[0].type in ("CONV_2D", "DEPTHWISE_CONV_2D") and rows[0].constant_bytes == max(r.constant_bytes for r in rows[:-1])
    assert not any(row.type == "DEQUANTIZE" for row in rows)

