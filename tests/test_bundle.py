from __future__ import annotations

import hashlib
import json
import stat
import zipfile
from pathlib import Path

import pytest

from edgekit import bundle
from edgekit.errors import BundleError, UsageError
from edgekit.tensors import Signature, TensorSpec
from tests.manifests import manifest

FILES: dict[str, Path | bytes] = {"artifact/m.tflite": b"weights" * 100, "golden/inputs/000-0.raw": b"\0" * 16, "trim/ops.txt": b"CONV_2D 3"}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "m.edgekit"
    bundle.write(path, manifest(), FILES)
    return path


def rewrite(path: Path, change: dict[str, bytes | None], *, attributes: int = 0o644) -> Path:
    """Copy a bundle with entries changed, added, or (None) left out, without touching its manifest."""
    out = path.with_name("changed.edgekit")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as sink:
        content = {info.filename: source.read(info) for info in source.infolist()} | change
        for name, data in content.items():
            if data is not None:
                info = zipfile.ZipInfo(name)
                info.external_attr = (attributes if name in change else 0o644) << 16
                sink.writestr(info, data, zipfile.ZIP_DEFLATED)
    return out


def test_what_is_written_is_read(written: Path, tmp_path: Path) -> None:
    with bundle.open(written) as opened:
        assert opened.read("artifact/m.tflite") == FILES["artifact/m.tflite"]
        assert opened.manifest.artifact.precision == "fp32"
        assert opened.extract("artifact/m.tflite", tmp_path / "out") == [tmp_path / "out" / "m.tflite"]
        assert opened.extract("golden", tmp_path / "out") == [tmp_path / "out" / "golden" / "inputs" / "000-0.raw"]


def test_the_same_content_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.edgekit"
    reordered = dict(reversed(list(FILES.items())))
    (tmp_path / "on-disk").write_bytes(b"weights" * 100)
    bundle.write(again, manifest(), reordered | {"artifact/m.tflite": tmp_path / "on-disk"})
    assert again.read_bytes() == written.read_bytes()


def test_a_damaged_file_is_named(written: Path) -> None:
    changed = rewrite(written, {"golden/inputs/000-0.raw": b"\1" * 16})
    with pytest.raises(BundleError, match=r"golden/inputs/000-0\.raw does not match its checksum") as caught:
        bundle.open(changed)
    assert caught.value.exit_code == 7


def test_a_file_that_unpacks_to_more_than_stated_is_refused(written: Path) -> None:
    with pytest.raises(BundleError, match="unpacks to more than the 16 bytes"):
        bundle.open(rewrite(written, {"golden/inputs/000-0.raw": b"\0" * 50_000_000}))


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\evil", "C:evil", "a//b", ""])
def test_no_name_leaves_the_bundle(written: Path, name: str) -> None:
    with pytest.raises(BundleError):
        bundle.open(rewrite(written, {name: b"x"}))


@pytest.mark.parametrize("name", ["artifact/\x1b[31mred", "a/" * 600 + "x", "a" * 256])
def test_a_name_that_steers_a_terminal_or_no_system_holds_is_refused(written: Path, name: str) -> None:
    with pytest.raises(BundleError, match="not every system can hold"):
        bundle.open(rewrite(written, {name: b"x"}))


def test_a_file_that_is_also_a_folder_is_refused(tmp_path: Path) -> None:
    bundle.write(tmp_path / "m.edgekit", manifest(), FILES | {"artifact/m.tflite/inner": b"x"})
    with pytest.raises(BundleError, match="a file and a folder"):
        bundle.open(tmp_path / "m.edgekit")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_whose_output_cannot_be_bounded_is_refused(written: Path, tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(tmp_path / "other.edgekit", "w", method) as sink:
        for name in source.namelist():
            sink.writestr(name, source.read(name))
    with pytest.raises(BundleError, match="otherwise than by deflate"):
        bundle.open(tmp_path / "other.edgekit")


def test_a_symbolic_link_is_refused(written: Path) -> None:
    with pytest.raises(BundleError, match="symbolic link"):
        bundle.open(rewrite(written, {"artifact/link": b"/etc/passwd"}, attributes=stat.S_IFLNK | 0o777))


@pytest.mark.parametrize("change", [{"artifact/extra": b"x"}, {"artifact/m.tflite": None}])
def test_the_files_are_those_of_the_manifest(written: Path, change: dict[str, bytes | None]) -> None:
    with pytest.raises(BundleError, match=r"listed in manifest\.json"):
        bundle.open(rewrite(written, change))


def test_a_newer_schema_is_told(written: Path) -> None:
    with zipfile.ZipFile(written) as archive:
        document = json.loads(archive.read("manifest.json")) | {"schema": 99, "unknown": 1}
    with pytest.raises(BundleError, match="bundle schema 99") as caught:
        bundle.open(rewrite(written, {"manifest.json": json.dumps(document).encode()}))
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("signature", "inputs", 0, "shape"), [1, -3], "-3"),
        (("source_signature", "outputs", 0, "dtype"), "object", "object"),
        (("artifact", "main"), "../../etc/passwd", "not among the files"),
        (("artifact", "main"), "artifact/other.tflite", "not among the files"),
        (("name",), "../../evil", "no name of a bundle"),
        (("name",), "a\x1b[2J", "no name of a bundle"),
        (("preprocess",), {"dtype": "linux"}, "preprocess: unknown dtype 'linux'"),
        (("preprocess",), {"std": [0.0]}, "preprocess: std must not be zero"),
        (("artifact", "main"), ".", "not among the files"),
        (("golden", "random"), 99, "99 of"),
        (("golden", "samples"), [], "no golden sample"),
        (("signature", "inputs", 0, "scale"), 0.5, "float32 with the scale 0.5"),
        (("signature", "inputs", 0), {"name": "x", "shape": [1], "dtype": "int8", "scale": 0.0}, "with the scale 0"),
        (("signature", "inputs", 0), {"name": "x", "shape": [1], "dtype": "int8", "scale": 1e308}, "with the scale"),
        (("signature", "inputs", 0, "pixels"), {"layout": "NCHW", "scale": [1.0], "offset": [0.0]}, "pixels do not fit"),
        (
            ("signature", "inputs", 0),
            {"name": "x", "shape": [1, 2, 2, 1], "dtype": "uint8", "pixels": {"layout": "NHWC", "scale": [0.0], "offset": [0.0]}},
            "pixels do not fit",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(written: Path, place: tuple[str | int, ...], value: object, said: str) -> None:
    with zipfile.ZipFile(written) as archive:
        document = json.loads(archive.read(bundle.MANIFEST))
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(BundleError, match=said) as caught:
        bundle.open(rewrite(written, {bundle.MANIFEST: json.dumps(document).encode()}))
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\3\4" + b"\0" * 100])
def test_what_is_no_bundle_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.edgekit"
    path.write_bytes(data)
    with pytest.raises(BundleError):
        bundle.open(path)


def test_a_truncated_bundle_is_refused(written: Path, tmp_path: Path) -> None:
    data = written.read_bytes()
    for cut in range(0, len(data), 97):
        (tmp_path / "cut.edgekit").write_bytes(data[:cut])
        with pytest.raises(BundleError):
            bundle.open(tmp_path / "cut.edgekit")


def test_every_single_flipped_byte_is_found_or_harmless(written: Path, tmp_path: Path) -> None:
    data = written.read_bytes()
    for at in range(0, len(data), 31):
        changed = bytearray(data)
        changed[at] ^= 0x55
        (tmp_path / "flipped.edgekit").write_bytes(bytes(changed))
        try:
            with bundle.open(tmp_path / "flipped.edgekit") as opened:
                assert hashlib.sha256(opened.read("artifact/m.tflite")).digest() == hashlib.sha256(b"weights" * 100).digest()
        except BundleError:
            pass


def test_a_missing_bundle_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such bundle"):
        bundle.open(tmp_path / "none.edgekit")


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        bundle.write(tmp_path / "m.edgekit", manifest(), {"artifact/m.tflite": b"x"} | {"gone": tmp_path / "gone"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(1, 3), (1, 5)])
def test_a_golden_tensor_of_another_size_is_refused_by_name(tmp_path: Path, shape: tuple[int, ...]) -> None:
    signature = Signature((TensorSpec("x", shape, "float32"),), ())
    bundle.write(tmp_path / "m.edgekit", manifest(source_signature=signature), FILES)
    with bundle.open(tmp_path / "m.edgekit") as opened:
        with pytest.raises(BundleError, match=r"golden/inputs/000-0.raw is not what the manifest says"):
            opened.golden("inputs", 0, 0)
        with pytest.raises(BundleError, match="not what the manifest says"):
            opened.golden("inputs", 0, 1)
