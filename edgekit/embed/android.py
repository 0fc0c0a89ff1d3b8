"""An Android library: a Gradle module with the model as an asset, a typed Kotlin class and a golden test; an AAR where Kotlin is installed."""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from pathlib import Path

from edgekit import resources, tools
from edgekit.budget import format_size
from edgekit.bundle import Bundle
from edgekit.embed import kotlin, kotlin_compiler, names
from edgekit.errors import UsageError
from edgekit.manifest import Manifest, golden_spec
from edgekit.tensors import TensorSpec, dequantize, raw_bytes

LITERT = "com.google.ai.edge.litert:litert:1.4.1"
MIN_SDK = 23
KIND = "Android library"
_PACKAGE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_CLASS = re.compile(r"[A-Z][A-Za-z0-9_]*")


def write(opened: Bundle, name: str, folder: Path) -> tuple[str, ...]:
    """Write the module into the empty `folder`; notices for the user.

    `name` is the class, `com.example.models.Classifier`, or without its package, which then is `edgekit.BUNDLE`. Raises `UsageError` when it is no
    name, or when a tensor's type cannot cross.
    """
    manifest = opened.manifest
    if manifest.artifact.format != "tflite":
        raise UsageError(f"{manifest.name}: no Android library is written around {manifest.artifact.format} artifacts", "package for android-arm64")
    package, name = _names(name, manifest.name)
    asset = f"edgekit/{names.file_word(manifest.name)}.tflite"
    code = folder / "src/main/kotlin" / Path(*package.split("."))
    image = kotlin.image_input(manifest.preprocess, manifest.signature)
    _place(code / f"{name}.kt", kotlin.source(manifest, package, name, asset).encode())
    for file in ("TensorSpec.kt", "LiteRtModel.kt", *(["ImageInput.kt"] if image else [])):
        _place(code / file, _shared(file, package))
    _place(folder / "src/main/assets" / asset, opened.read(manifest.artifact.main))
    _place(folder / "src/main/AndroidManifest.xml", b'<?xml version="1.0" encoding="utf-8"?>\n<manifest />\n')
    _golden(opened, folder / "src/androidTest", package, name)
    _place(folder / "build.gradle.kts", _GRADLE.format(package=package, min_sdk=MIN_SDK, litert=LITERT).encode())
    _place(folder / "README.md", _readme(manifest, package, name).encode())
    if not any(tool.name == "kotlin" and tool.installed for tool in tools.status()):
        return ("no AAR was built here: Gradle builds one from the module, or run 'edgekit tools install kotlin' and embed again",)
    _place(folder / f"{manifest.name}.aar", archive(sorted(code.glob("*.kt")), package, folder / "src/main/assets"))
    return ()


def _names(name: str, bundle: str) -> tuple[str, str]:
    package, _, word = name.rpartition(".")
    package, word = package or f"edgekit.{names.file_word(bundle)}", word or names.class_name(bundle)
    if not _PACKAGE.fullmatch(package) or not _CLASS.fullmatch(word) or kotlin.KEYWORDS & {*package.split("."), word}:
        raise UsageError(f"{name!r} is no name of a Kotlin class", "for instance com.example.models.Classifier")
    return package, word


def archive(sources: list[Path], package: str, assets: Path) -> bytes:
    """An AAR, the same bytes for the same sources: manifest, classes.jar, assets. Compiled against signatures, which are not in it."""
    with tempfile.TemporaryDirectory() as temporary:
        stubs, classes = Path(temporary) / "stubs", Path(temporary) / "classes"
        kotlin_compiler.compile_classes(sorted((resources.directory("apps") / "embed" / "android" / "stubs").glob("*.kt")), stubs)
        kotlin_compiler.compile_classes(sources, classes, [stubs])
        jar = _zip({path.relative_to(classes).as_posix(): path.read_bytes() for path in sorted(classes.rglob("*")) if path.is_file()})
    declared = f'<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{package}">\n'
    entries = {
        "AndroidManifest.xml": f'{declared}  <uses-sdk android:minSdkVersion="{MIN_SDK}" />\n</manifest>\n'.encode(),
        "R.txt": b"",
        "classes.jar": jar,
        **{f"assets/{path.relative_to(assets).as_posix()}": path.read_bytes() for path in sorted(assets.rglob("*")) if path.is_file()},
    }
    return _zip(entries)


def _golden(source: Bundle, folder: Path, package: str, name: str) -> None:
    """The first golden sample as an instrumented test: what the desktop answered, the phone must answer."""
    manifest = source.manifest
    assets, code = folder / f"assets/edgekit/{names.file_word(manifest.name)}", folder / "kotlin" / Path(*package.split("."))
    for kind, specs in (("inputs", manifest.signature.inputs), ("host", manifest.signature.outputs)):
        for index, spec in enumerate(specs):
            values, stored = source.golden(kind, 0, index), golden_spec(manifest, kind, index)
            real = values if stored.scale is None else dequantize(values, stored)
            _place(assets / f"{kind}-{index}.raw", raw_bytes(real.astype(spec.real.dtype)))
    _place(code / "Golden.kt", _shared("Golden.kt", package))
    _place(code / f"{name}GoldenTest.kt", kotlin.golden_test(manifest, package, name, f"edgekit/{names.file_word(manifest.name)}").encode())


def _shared(file: str, package: str) -> bytes:
    text = (resources.directory("apps") / "embed" / "android" / file).read_text("utf-8")
    return text.replace("package edgekit.template", f"package {package}").encode()


def _place(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _zip(entries: dict[str, bytes]) -> bytes:
    """The files, sorted and without times; a model stays uncompressed, so that the app can map it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_STORED if name.endswith(".tflite") else zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, entries[name])
    return buffer.getvalue()


def _readme(manifest: Manifest, package: str, name: str) -> str:
    arguments = ", ".join(names.parameters(manifest.signature.inputs, kotlin.KEYWORDS))
    call = "bitmap" if kotlin.image_input(manifest.preprocess, manifest.signature) else arguments
    first = names.parameters(manifest.signature.outputs, kotlin.KEYWORDS)[0]
    tensors_said = "".join(f"- {role} {names.meaning(spec)}\n" for role, specs in _roles(manifest) for spec in specs)
    return _README.format(
        title=manifest.name,
        precision=manifest.artifact.precision,
        size=format_size(manifest.artifact.bytes),
        package=package,
        name=name,
        call=call,
        first=first,
        tensors=tensors_said,
        litert=LITERT,
        licenses="".join(f"- {what}: {license}\n" for what, license in sorted(manifest.licenses.items())) or "- none are stored in the bundle\n",
    )


def _roles(manifest: Manifest) -> tuple[tuple[str, tuple[TensorSpec, ...]], ...]:
    return ("input", manifest.signature.inputs), ("output", manifest.signature.outputs)


_GRADLE = """plugins {{
    id("com.android.library")
    id("org.jetbrains.kotlin.android")
}}

android {{
    namespace = "{package}"
    compileSdk = 35
    defaultConfig {{
        minSdk = {min_sdk}
        testInstrumentationRunner = "androidx.test.runner.AndroidJUnitRunner"
    }}
    // a compressed asset cannot be mapped
    androidResources {{ noCompress += "tflite" }}
}}

dependencies {{
    implementation("{litert}")
    androidTestImplementation("androidx.test:runner:1.6.2")
    androidTestImplementation("androidx.test.ext:junit:1.2.1")
}}
"""

_README = """# {title}

{precision}, {size}; made by edgekit.

Use the AAR, or this folder as a module of your Gradle build (`include(":{title}")` in settings.gradle.kts). An app that takes the AAR
also needs `implementation("{litert}")`.

```kotlin
import {package}.{name}

{name}(context).use {{ model ->
    val outputs = model.run({call})
    println(outputs.{first}.size)
}}
```

{tensors}
`./gradlew :{title}:connectedAndroidTest` runs the golden sample on a phone and compares it with the desktop's answer.

Licenses:
{licenses}"""
