"""The reader of ML Program packages, the interpreter's precision, its taps and its hazards."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgekit import formats
from edgekit.errors import BundleError, ConversionError, EdgekitError, RunnerError, UsageError
from edgekit.formats import mlprogram
from edgekit.virtual.coreml import packed, wire
from tests import coreml_packages as packages

torch = pytest.importorskip("torch")


def linear(folder: Path, dtype: str = "float16", version: int = 8) -> tuple[Path, np.ndarray]:
    """A package that multiplies by a weight kept in the weight file, then adds 1."""
    weights = packages.Weights()
    w = np.random.RandomState(0).randn(6, 4).astype(dtype)
    stored = {"val": weights.add(w, dtype)}
    body = packages.block(
        [
            packages.operation("const", "w", {}, [packages.named("w", dtype, w.shape)], stored),
            packages.operation("linear", "dense", {"x": "x", "weight": "w"}, [packages.named("h", dtype, (2, 6))]),
            packages.operation("add", "shift", {"x": "h", "y": packages.literal(np.float32(1), dtype)}, [packages.named("y", dtype, (2, 6))]),
        ],
        ["y"],
    )
    data = packages.model({"x": (dtype, (2, 4))}, {"y": dtype}, body, version)
    return packages.write(folder, data, bytes(weights.data)), w


def test_opens_runs_and_lists(tmp_path: Path) -> None:
    path, w = linear(tmp_path / "m.mlpackage")
    model = formats.open(str(path))
    assert [(t.name, t.shape, t.dtype) for t in (*model.signature.inputs, *model.signature.outputs)] == [
        ("x", (2, 4), "float16"),
        ("y", (2, 6), "float16"),
    ]
    x = np.random.RandomState(1).randn(2, 4).astype(np.float16)
    got = formats.session(model).run({"x": x})["y"]
    hidden = (x.astype(np.float64) @ w.astype(np.float64).T).astype(np.float16)
    np.testing.assert_array_equal(got, hidden + np.float16(1))
    graph = mlprogram.graph(model)
    assert [(o.type, o.name, o.macs, o.version) for o in graph.operators] == [("linear", "dense", 48, 7), ("add", "shift", 0, 7)]
    assert graph.constant_bytes(graph.operators[0]) == 48
    assert graph.operators[1].attributes == {"y": 1.0}
    assert graph.file_bytes == sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def test_half_is_rounded_after_every_operator(tmp_path: Path) -> None:
    """(x + 2048) - 2048 loses what half cannot hold between the two, as the sum of both in one operator would not."""
    steps = [
        packages.operation("add", "up", {"x": "x", "y": packages.literal(np.float32(2048), "float16")}, [packages.named("h", "float16", (4,))]),
        packages.operation("sub", "down", {"x": "h", "y": packages.literal(np.float32(2048), "float16")}, [packages.named("y", "float16", (4,))]),
    ]
    data = packages.model({"x": ("float16", (4,))}, {"y": "float16"}, packages.block(steps, ["y"]))
    model = mlprogram.open(str(packages.write(tmp_path / "m.mlpackage", data)), {})
    got = mlprogram.session(model).run({"x": np.array([0.75, 1, 1.5, 3], np.float16)})["y"]
    np.testing.assert_array_equal(got, [0, 0, 2, 4])  # halves to even: 2049 -> 2048, 2051 -> 2052


def test_same_program_in_single_precision_keeps_it(tmp_path: Path) -> None:
    path, w = linear(tmp_path / "m.mlpackage", "float32")
    x = np.random.RandomState(1).randn(2, 4).astype(np.float32)
    got = mlprogram.session(mlprogram.open(str(path), {})).run({"x": x})["y"]
    np.testing.assert_allclose(got, x.astype(np.float64) @ w.T + 1, rtol=1e-6, atol=1e-6)


def test_control_flow_and_lists(tmp_path: Path) -> None:
    """Squares of 0 .. n-1 written to a list in a loop; then a branch on the input."""
    named, op, literal = packages.named, packages.operation, packages.literal
    condition = packages.block(
        [op("less", "c", {"x": "i", "y": "n"}, [named("go", "bool", ())])], ["go"], [named("i", "int32", ()), named("s", "int32", ())]
    )
    body = packages.block(
        [
            op("mul", "m", {"x": "j", "y": "j"}, [named("sq", "int32", ())]),
            op("add", "a", {"x": "t", "y": "sq"}, [named("t2", "int32", ())]),
            op("add", "b", {"x": "j", "y": literal(np.int32(1))}, [named("j2", "int32", ())]),
        ],
        ["j2", "t2"],
        [named("j", "int32", ()), named("t", "int32", ())],
    )
    yes = packages.block([op("identity", "p", {"x": "total"}, [named("q", "int32", ())])], ["q"])
    no = packages.block([op("mul", "r", {"x": "total", "y": literal(np.int32(-1))}, [named("u", "int32", ())])], ["u"])
    program = packages.block(
        [
            op("const", "zero", {}, [named("zero", "int32", ())], {"val": literal(np.int32(0))}),
            op(
                "while_loop",
                "loop",
                {"loop_vars": ["zero", "zero"]},
                [named("last", "int32", ()), named("total", "int32", ())],
                None,
                [condition, body],
            ),
            op("greater", "g", {"x": "total", "y": literal(np.int32(20))}, [named("big", "bool", ())]),
            op("cond", "choice", {"pred": "big"}, [named("y", "int32", ())], None, [yes, no]),
        ],
        ["y"],
    )
    data = packages.model({"n": ("int32", ())}, {"y": "int32"}, program)
    session = mlprogram.session(mlprogram.open(str(packages.write(tmp_path / "m.mlpackage", data)), {}))
    assert [int(session.run({"n": np.int32(n)})["y"]) for n in (0, 3, 5)] == [0, -5, 30]


# --- hostile and damaged packages


def redirect(path: Path, name: Any) -> None:
    manifest = json.loads((path / "Manifest.json").read_text())
    manifest["itemInfoEntries"]["A"]["path"] = name
    (path / "Manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/passwd", "com.apple.CoreML/../../x", "a\\b", "", 7, None])
def test_a_path_that_leaves_the_package_is_refused(tmp_path: Path, name: Any) -> None:
    path, _ = linear(tmp_path / "m.mlpackage")
    redirect(path, name)
    with pytest.raises(BundleError, match="leaves the package") as raised:
        mlprogram.open(str(path), {})
    assert raised.value.exit_code == 7


def test_a_link_that_leaves_the_package_is_refused(tmp_path: Path) -> None:
    path, _ = linear(tmp_path / "m.mlpackage")
    model = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model.rename(tmp_path / "elsewhere")
    model.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="through a link"):
        mlprogram.open(str(path), {})


def test_weights_missing_truncated_or_elsewhere(tmp_path: Path) -> None:
    path, _ = linear(tmp_path / "m.mlpackage")
    weights = path / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:130])
    with pytest.raises(BundleError, match="truncated"):
        mlprogram.session(mlprogram.open(str(path), {}))
    weights.write_bytes(whole[:64] + struct.pack("<I", 7) + whole[68:])
    with pytest.raises(BundleError, match="damaged"):
        mlprogram.session(mlprogram.open(str(path), {}))
    weights.unlink()
    with pytest.raises(BundleError, match=r"weight\.bin is missing"):
        mlprogram.session(mlprogram.open(str(path), {}))
    model = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model.write_bytes(model.read_bytes().replace(b"@model_path/weights/weight.bin", b"@model_path/../weights/xxx.bin"))
    with pytest.raises(BundleError, match="leaves the package"):
        mlprogram.session(mlprogram.open(str(path), {}))


def test_missing_parts_and_newer_specification_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        mlprogram.open(str(tmp_path / "none.mlpackage"), {})
    (tmp_path / "empty.mlpackage").mkdir()
    with pytest.raises(BundleError, match=r"Manifest\.json"):
        mlprogram.open(str(tmp_path / "empty.mlpackage"), {})
    path, _ = linear(tmp_path / "new.mlpackage", version=99)
    with pytest.raises(BundleError, match="version 99"):
        mlprogram.open(str(path), {})
    (path / "Data" / "com.apple.CoreML" / "model.mlmodel").unlink()
    with pytest.raises(BundleError, match="specification is missing"):
        mlprogram.open(str(path), {})


def test_another_kind_of_model_is_named(tmp_path: Path) -> None:
    path = packages.write(tmp_path / "m.mlpackage", packages.number(1, 4) + packages.message(500, b""))
    with pytest.raises(ConversionError, match="a neural network"):
        mlprogram.open(str(path), {})


@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cut=st.integers(0, 700), flips=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 255)), max_size=3))
def test_a_damaged_specification_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    path, _ = linear(tmp_path_factory.mktemp("damage") / "m.mlpackage")
    file = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    data = bytearray(file.read_bytes())
    for at, flip in flips:
        data[at % len(data)] ^= flip
    file.write_bytes(bytes(data[: max(len(data) - cut, 0)] if not flips else data))
    try:
        model = mlprogram.open(str(path), {})
        mlprogram.graph(model)
        mlprogram.session(model).run({"x": np.zeros((2, 4), np.float16)})
    except EdgekitError as error:
        assert error.exit_code in (2, 4, 6, 7)


def test_deep_nesting_and_long_numbers_are_refused() -> None:
    table: wire.Table = {1: wire.Field("inner", "message", message=lambda: table)}
    data = b""
    for _ in range(100):
        data = packages.message(1, data)
    with pytest.raises(wire.WireError, match="nest deeper"):
        wire.decode(memoryview(data), table)
    with pytest.raises(wire.WireError, match="runs past the end"):
        wire.decode(memoryview(b"\xff" * 12), table)


def test_wrong_inputs_are_named(tmp_path: Path) -> None:
    path, _ = linear(tmp_path / "m.mlpackage")
    session = mlprogram.session(mlprogram.open(str(path), {}))
    for inputs, words in (
        ({}, "x is missing"),
        ({"x": np.zeros((3, 4))}, r"\[3, 4\]"),
        ({"x": np.zeros((2, 4)), "z": np.zeros(1)}, "unknown input z"),
    ):
        with pytest.raises(RunnerError, match=words) as raised:
            session.run(inputs)
        assert raised.value.stage == "input"
    with pytest.raises(UsageError, match="no input 'y'"):
        mlprogram.open(str(path), {"y": (1,)})


def test_sub_byte_integers_unpack_from_the_low_bit() -> None:
    np.testing.assert_array_equal(packed.unpack(bytes([0b11_10_01_00, 0b00000011]), "uint2", (5,)), [0, 1, 2, 3, 3])
    np.testing.assert_array_equal(packed.unpack(bytes([0x8F]), "int4", (2,)), [-1, -8])
    with pytest.raises(BundleError):
        packed.unpack(b"\0", "uint3", (3,))


def test_reading_and_running_import_no_coremltools(tmp_path: Path) -> None:
    path, _ = linear(tmp_path / "m.mlpackage")
    code = (
        "import sys, numpy as np\n"
        "from edgekit.formats import mlprogram\n"
        f"model = mlprogram.open({str(path)!r}, {{}}); mlprogram.graph(model)\n"
        "assert 'torch' not in sys.modules and 'google.protobuf' not in sys.modules\n"
        "mlprogram.session(model).run({'x': np.zeros((2, 4), np.float16)})\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('coremltools', 'google', 'tensorflow')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_open_sizes_are_fixed_by_the_user_and_fixed_ones_are_not(tmp_path: Path) -> None:
    double = packages.operation("add", "double", {"x": "x", "y": "x"}, [packages.named("y", "float32", (-1, 3))])
    data = packages.model({"x": ("float32", (-1, 3))}, {"y": "float32"}, packages.block([double], ["y"]))
    path = str(packages.write(tmp_path / "m.mlpackage", data))
    with pytest.raises(ConversionError, match="not fixed"):
        mlprogram.open(path, {})
    with pytest.raises(UsageError, match=r"takes \[\?, 3\]"):
        mlprogram.open(path, {"x": (2, 4)})
    model = mlprogram.open(path, {"x": (5, 3)})
    assert [t.shape for t in model.signature.outputs] == [(5, 3)]
