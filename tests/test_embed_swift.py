"""The Swift package: files in their places, and sources that parse; there is no Swift compiler for this platform in the package registries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgekit import bundle, pixels, resources
from edgekit.embed import swift
from edgekit.errors import UsageError
from edgekit.manifest import ArtifactEntry, Golden
from edgekit.preprocess import Preprocess
from edgekit.tensors import Signature, TensorSpec
from tests.manifests import manifest

tree_sitter = pytest.importorskip("tree_sitter")
tree_sitter_swift = pytest.importorskip("tree_sitter_swift")


def errors(source: str) -> list[str]:
    """The pieces of Swift source that do not parse."""
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
    data = source.encode()
    found, nodes = [], [parser.parse(data).root_node]
    while nodes:
        node: Any = nodes.pop()
        if node.type == "ERROR" or node.is_missing:
            found.append(data[node.start_byte : node.end_byte].decode())
        nodes += node.children
    return found


def test_the_parser_sees_what_is_wrong() -> None:
    assert errors("let x = [1, 2") != []


@pytest.mark.parametrize("file", sorted((resources.directory("apps") / "embed" / "swift").glob("*.swift")), ids=lambda file: file.name)
def test_the_shared_sources_parse(file: Path) -> None:
    assert errors(file.read_text("utf-8")) == []


SIGNATURE = Signature(
    (TensorSpec("image:0", (1, 3, 8, 10), "float32", layout="NCHW"),),
    (TensorSpec("in", (1, 2), "float32"), TensorSpec('odd "\\(name)', (1,), "int32")),
)


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """A bundle of a package, whose names would break careless code."""
    target = manifest().target
    changes: dict[str, object] = {
        "signature": SIGNATURE,
        "source_signature": SIGNATURE,
        "artifact": ArtifactEntry("artifact/net.mlpackage", "mlprogram", "fp16", 4, "ab" * 32, {"in": "in_1"}),
        "golden": Golden(("a",), 0),
        "preprocess": Preprocess(resize=(10, 8), interpolation="bicubic"),
        "name": "net",
        "target": target,
    }
    arrays = {
        "golden/inputs/000-0.raw": np.zeros((1, 3, 8, 10), "<f4").tobytes(),
        "golden/host/000-0.raw": np.array([1, 2], "<f4").tobytes(),
        "golden/host/000-1.raw": np.array([7], "<i4").tobytes(),
    }
    package: dict[str, Path | bytes] = {"artifact/net.mlpackage/Manifest.json": b"{}", "artifact/net.mlpackage/Data/weights.bin": b"1234", **arrays}
    bundle.write(tmp_path / "net.edgekit", manifest(**changes), package)
    with bundle.open(tmp_path / "net.edgekit") as opened:
        yield opened


def test_every_written_source_parses_and_keeps_the_model_s_names(opened: Any, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    swift.write(opened, "Net", folder)
    sources = sorted(folder.rglob("*.swift"))
    assert [path.relative_to(folder).as_posix() for path in sources] == [
        "Package.swift",
        *(f"Sources/NetKit/{name}.swift" for name in ("ImageInput", "Net", "PackagedModel", "PixelBuffer")),
        *(f"Tests/NetKitTests/{name}.swift" for name in ("Golden", "NetTests")),
    ]
    assert {path.name: errors(path.read_text("utf-8")) for path in sources} == {path.name: [] for path in sources}
    text = (folder / "Sources/NetKit/Net.swift").read_text("utf-8")
    assert "public func run(image0: [Float]) throws -> Outputs" in text
    assert "public let inValue: [Float]" in text
    assert 'PackagedModel.output("in_1", features, as: Float.self)' in text
    assert not any("\\(name)" in line for line in text.splitlines() if "///" not in line)
    assert "interpolation: .bicubic" in text
    assert (folder / "Sources/NetKit/net.mlpackage/Data/weights.bin").read_bytes() == b"1234"
    assert (folder / "Tests/NetKitTests/golden/host-1.raw").read_bytes() == np.array([7], "<i4").tobytes()


def test_what_cannot_cross_is_refused(opened: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no name of a Swift class"):
        swift.write(opened, "net kit", tmp_path)
    with pytest.raises(UsageError, match="cannot pass float64"):
        swift._value(TensorSpec("x", (1,), "float64"))


def test_an_image_input_takes_pictures_and_frames(opened: Any, tmp_path: Path) -> None:
    edge = pixels.edge(SIGNATURE, opened.manifest.preprocess)
    made = msgspec.structs.replace(opened.manifest, signature=edge)
    text, test = swift.source(made, "Net", "net"), swift.golden_test(made, "Net", "NetKit")
    assert errors(text) == errors(test) == []
    assert "public func run(image0: [UInt8]) throws -> Outputs" in text
    assert '"image:0": PackagedModel.image("image:0", image0, width: 10, height: 8, channels: 3)' in text
    assert "try run(image0: Net.image.pixels(image))" in text and "public func run(_ buffer: CVPixelBuffer) throws -> Outputs" in text
    assert 'Golden.values("inputs-0", as: UInt8.self)' in test and "import CoreVideo" in text
