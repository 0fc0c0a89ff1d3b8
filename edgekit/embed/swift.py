"""A Swift package: the Core ML model as a resource, a typed class whose signature is the model's, and the test of a golden sample."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from edgekit import resources
from edgekit.bundle import Bundle
from edgekit.embed import names
from edgekit.errors import UsageError
from edgekit.manifest import Manifest
from edgekit.tensors import TensorSpec, quantize, raw_bytes

KIND = "Swift package"
VALUES = {"float32": "Float", "int32": "Int32"}
"""What one value of a tensor is to the caller. Core ML's own float16 arrays are converted by Core ML."""

KEYWORDS = frozenset(
    {"as", "associatedtype", "break", "case", "catch", "class", "continue", "default", "defer", "deinit", "do", "else", "enum", "extension"}
    | {"fallthrough", "false", "fileprivate", "for", "func", "guard", "if", "import", "in", "init", "inout", "internal", "is", "let", "nil"}
    | {"operator", "precedencegroup", "private", "protocol", "public", "repeat", "rethrows", "return", "self", "static", "struct", "subscript"}
    | {"super", "switch", "throw", "throws", "true", "try", "typealias", "var", "where", "while"}
)
"""Swift's keywords («The Swift Programming Language», lexical structure)."""

SYSTEMS = {"iOS16": ("16.0", "13.0"), "iOS17": ("17.0", "14.0"), "iOS18": ("18.0", "15.0")}
"""Deployment of the target -> the oldest iOS and macOS, which were released together."""


def write(opened: Bundle, name: str, folder: Path) -> tuple[str, ...]:
    """Write the package into the empty `folder`; notices for the user.

    `name` is the class, the bundle's name in camel case without one. Raises `UsageError` when it is no name, or when a tensor's type cannot cross.
    """
    manifest = opened.manifest
    if manifest.artifact.format != "mlprogram":
        raise UsageError(f"{manifest.name}: no Swift package is written around {manifest.artifact.format} artifacts", "package for ios-coreml")
    name = name or names.class_name(manifest.name)
    if not re.fullmatch(r"[A-Z][A-Za-z0-9_]*", name):
        raise UsageError(f"{name!r} is no name of a Swift class", "for instance Classifier")
    module, resource = f"{name}Kit", names.file_word(manifest.name)
    code, tests = folder / "Sources" / module, folder / "Tests" / f"{module}Tests"
    for path in (code, tests / "golden"):
        path.mkdir(parents=True)
    pictures = names.image_fields(manifest.preprocess, manifest.signature) is not None
    for file in ("PackagedModel.swift", "PixelBuffer.swift", *(["ImageInput.swift"] if pictures else [])):
        (code / file).write_bytes(_shared(file))
    (code / f"{name}.swift").write_text(source(manifest, name, resource), "utf-8")
    opened.extract(manifest.artifact.main, code)
    (code / Path(manifest.artifact.main).name).rename(code / f"{resource}.mlpackage")
    (tests / "Golden.swift").write_bytes(_shared("Golden.swift"))
    (tests / f"{name}Tests.swift").write_text(golden_test(manifest, name, module), "utf-8")
    for kind, specs in (("inputs", manifest.signature.inputs), ("host", manifest.signature.outputs)):
        for index, spec in enumerate(specs):
            (tests / "golden" / f"{kind}-{index}.raw").write_bytes(raw_bytes(quantize(opened.golden(kind, 0, index), spec)))
    ios, macos = SYSTEMS.get(str(manifest.target.options.get("deployment")), SYSTEMS["iOS16"])
    values = {"module": module, "resource": resource, "ios": ios, "macos": macos}
    (folder / "Package.swift").write_text(_filled(_PACKAGE, values), "utf-8")
    (folder / "README.md").write_text(_readme(manifest, name, module), "utf-8")
    return ("the Swift code was checked for syntax only: no Swift compiler and no Core ML are at hand where edgekit is built",)


def source(manifest: Manifest, name: str, resource: str) -> str:
    """The file of the typed class. Raises `UsageError` when a tensor's type cannot cross."""
    signature, called = manifest.signature, manifest.artifact.runtime_names
    inputs, outputs = names.parameters(signature.inputs, KEYWORDS), names.parameters(signature.outputs, KEYWORDS)
    image = _image(manifest)
    given = list(zip(inputs, signature.inputs, strict=True))
    taken = list(zip(outputs, signature.outputs, strict=True))
    values = {
        "summary": names.summary(manifest),
        "class": name,
        "resource": _text(resource),
        "digest": _text(manifest.artifact.sha256[:16]),
        "properties": "\n".join(f"        /// {names.meaning(spec)}\n        public let {word}: [{_value(spec)}]" for word, spec in taken),
        "documents": "\n".join(f"    ///   - {word}: {names.meaning(spec)}" for word, spec in given),
        "parameters": ", ".join(f"{word}: [{_value(spec)}]" for word, spec in given),
        "inputs": "\n".join(f"            {_text(called.get(spec.name, spec.name))}: {_feature(word, spec)}," for word, spec in given),
        "outputs": _outputs(manifest, outputs),
        "import": "import CoreGraphics\n" if image else "",
        "video": "import CoreVideo\n" if image and signature.inputs[0].pixels else "",
        "image": f"\n    private static let image = {image}\n" if image else "",
        "picture": _picture(manifest, name, inputs[0]) if image else "",
    }
    return _filled(_CLASS, values)


def golden_test(manifest: Manifest, name: str, module: str) -> str:
    """The file of a test that runs a golden sample and compares it with the artifact's answer on the desktop."""
    signature = manifest.signature
    inputs, outputs = names.parameters(signature.inputs, KEYWORDS), names.parameters(signature.outputs, KEYWORDS)
    least_db = manifest.target.tolerance.device.min_sqnr_db or 40.0
    given = (
        f'{word}: Golden.values("inputs-{index}", as: {_value(spec)}.self)'
        for index, (word, spec) in enumerate(zip(inputs, signature.inputs, strict=True))
    )
    checks = (
        f'        Golden.check({_text(spec.name)}, try Golden.values("host-{index}", as: {_value(spec)}.self), outputs.{word}, leastDb: {least_db!r})'
        for index, (word, spec) in enumerate(zip(outputs, signature.outputs, strict=True))
    )
    return _filled(_TEST, {"module": module, "class": name, "inputs": ", ".join(given), "checks": "\n".join(checks)})


def _image(manifest: Manifest) -> str:
    fields = names.image_fields(manifest.preprocess, manifest.signature)
    if fields is None:
        return ""
    return f"ImageInput(\n        {', '.join(f'{word}: {_literal(value)}' for word, value in fields.items())})"


def _picture(manifest: Manifest, name: str, word: str) -> str:
    """Methods that take a picture as apps have it."""
    spec, values = manifest.signature.inputs[0], {"class": name, "word": word}
    if spec.pixels is None:
        return _filled(_PICTURE, {**values, "value": _value(spec)})
    outputs = names.parameters(manifest.signature.outputs, KEYWORDS)
    called = manifest.artifact.runtime_names.get(spec.name, spec.name)
    size = f"{spec.shape[2]}x{spec.shape[1]}"
    return _filled(_FRAME, {**values, "size": size, "name": _text(called), "outputs": _outputs(manifest, outputs)})


def _outputs(manifest: Manifest, words: Sequence[str]) -> str:
    called = manifest.artifact.runtime_names
    return ",\n".join(
        f"            {word}: PackagedModel.output({_text(called.get(spec.name, spec.name))}, features, as: {_value(spec)}.self)"
        for word, spec in zip(words, manifest.signature.outputs, strict=True)
    )


def _feature(word: str, spec: TensorSpec) -> str:
    """The expression that makes a value of the model's of an argument."""
    if spec.pixels is None:
        return f"PackagedModel.input({_text(spec.name)}, {word}, shape: {list(spec.shape)})"
    _, height, width, channels = spec.shape
    return f"PackagedModel.image({_text(spec.name)}, {word}, width: {width}, height: {height}, channels: {channels})"


def _literal(value: object) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case str():
            return f".{value}"
        case range():
            return f"{float(value.start)}...{float(value.stop - 1)}"
        case _:
            return repr(value)


def _value(spec: TensorSpec) -> str:
    if spec.pixels is not None:
        return "UInt8"
    if spec.dtype not in VALUES:
        raise UsageError(f"{spec.name}: a Swift package cannot pass {spec.dtype} tensors to Core ML", f"it passes {', '.join(VALUES)}")
    return VALUES[spec.dtype]


def _text(value: str) -> str:
    """A Swift string literal without interpolation."""
    return '"' + "".join(f"\\u{{{ord(char):x}}}" if char in '"\\' or not char.isprintable() else char for char in value) + '"'


def _shared(file: str) -> bytes:
    """A source that every package has; the runner app shares what reads pixels."""
    apps = resources.directory("apps")
    own = apps / "embed" / "swift" / file
    return (own if own.is_file() else apps / "ios" / "Sources" / file).read_bytes()


def _filled(template: str, values: dict[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)


def _readme(manifest: Manifest, name: str, module: str) -> str:
    inputs = names.parameters(manifest.signature.inputs, KEYWORDS)
    call = "cgImage" if _image(manifest) else ", ".join(f"{word}: {word}" for word in inputs)
    values = {
        "title": manifest.name,
        "summary": names.summary(manifest),
        "module": module,
        "class": name,
        "call": call,
        "first": names.parameters(manifest.signature.outputs, KEYWORDS)[0],
    }
    return _filled(_README, values)


_PACKAGE = """// swift-tools-version:5.7
import PackageDescription

let package = Package(
    name: "@module@",
    platforms: [.iOS("@ios@"), .macOS("@macos@")],
    products: [.library(name: "@module@", targets: ["@module@"])],
    targets: [
        .target(name: "@module@", resources: [.copy("@resource@.mlpackage")]),
        .testTarget(name: "@module@Tests", dependencies: ["@module@"], resources: [.copy("golden")]),
    ]
)
"""

_CLASS = """@import@import CoreML
@video@
/// @summary@
///
/// Made by edgekit.
public final class @class@ {
    private let model: PackagedModel
@image@
    /// What one run gives.
    public struct Outputs {
@properties@
    }

    /// Compiles the model for this device on first use, which takes a moment.
    public init(configuration: MLModelConfiguration = MLModelConfiguration()) throws {
        model = try PackagedModel(resource: @resource@, digest: @digest@, configuration: configuration)
    }

    /// Run once.
    ///
    /// - Parameters:
@documents@
    public func run(@parameters@) throws -> Outputs {
        let features = try model.run([
@inputs@
        ])
        return try Outputs(
@outputs@
        )
    }
@picture@}
"""

_PICTURE = """
    /// Run on an image, preprocessed as it was when the model was packaged: resized, cropped, normalized.
    public func run(_ image: CGImage) throws -> Outputs {
        try run(@word@: @class@.image.values(image).map { @value@($0) })
    }
"""

_FRAME = """
    /// Run on an image, resized and cropped as it was when the model was packaged; what becomes of its pixels is part of the model.
    public func run(_ image: CGImage) throws -> Outputs {
        try run(@word@: @class@.image.pixels(image))
    }

    /// Run on a buffer of @size@ pixels as it is, for instance a camera's frame that was scaled already.
    public func run(_ buffer: CVPixelBuffer) throws -> Outputs {
        let features = try model.run([@name@: MLFeatureValue(pixelBuffer: buffer)])
        return try Outputs(
@outputs@
        )
    }
"""

_TEST = """import XCTest

import @module@

/// What the desktop answered when the model was packaged, this device must answer.
final class @class@Tests: XCTestCase {
    func testAnswersAsTheDesktop() throws {
        let model = try @class@()
        let outputs = try model.run(@inputs@)
@checks@
    }
}
"""

_README = """# @title@

@summary@ Made by edgekit.

Add this folder to an Xcode project as a local package, and the product `@module@` to the app.

```swift
import @module@

let model = try @class@()
let outputs = try model.run(@call@)
print(outputs.@first@.count)
```

Xcode's tests of the package run the golden sample on a device or a Mac, and compare it with the desktop's answer.
"""
