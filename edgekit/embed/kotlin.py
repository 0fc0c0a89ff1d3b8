"""Kotlin for a bundle: a typed class whose signature is the model's, and the test of a golden sample."""

from __future__ import annotations

import json
import re

from edgekit.embed import names
from edgekit.errors import UsageError
from edgekit.manifest import Manifest
from edgekit.preprocess import Preprocess
from edgekit.tensors import Signature, TensorSpec

VALUES = {
    "float32": "FloatArray",
    "int8": "ByteArray",
    "uint8": "ByteArray",
    "bool": "ByteArray",
    "int16": "ShortArray",
    "int32": "IntArray",
    "int64": "LongArray",
}
"""What a tensor without a scale is to the caller; one with a scale is a FloatArray of real values."""

_READERS = {"FloatArray": "floats", "ByteArray": "bytes", "ShortArray": "shorts", "IntArray": "ints", "LongArray": "longs"}
KEYWORDS = frozenset(
    {"as", "break", "class", "continue", "do", "else", "false", "for", "fun", "if", "in", "interface", "is", "null", "object", "package", "return"}
    | {"super", "this", "throw", "true", "try", "typealias", "typeof", "val", "var", "when", "while"}
)
"""Kotlin's hard keywords (kotlinlang.org, «Keywords and operators»)."""


def text(value: str) -> str:
    """A Kotlin string literal."""
    return json.dumps(value).replace("$", "\\$")


def tensor(spec: TensorSpec, runtime_name: str) -> str:
    """The call that makes a tensor's specification. Raises `UsageError` for a type that LiteRT's Java interface cannot pass."""
    if spec.dtype not in VALUES:
        raise UsageError(f"{spec.name}: an Android app cannot pass {spec.dtype} tensors to LiteRT", "package with --io float32")
    parts = [text(runtime_name), text(names.shape(spec)), str(spec.elements), f"Stored.{spec.dtype.upper()}"]
    if spec.scale is not None:
        parts += [repr(float(spec.scale)), str(spec.zero_point)]
    return f"TensorSpec({', '.join(parts)})"


def value_type(spec: TensorSpec) -> str:
    """The type in which the caller gives or gets a tensor."""
    return "FloatArray" if spec.scale is not None else VALUES[spec.dtype]


def source(manifest: Manifest, package: str, name: str, asset: str) -> str:
    """The file of the typed class. Raises `UsageError` when a tensor's type cannot cross."""
    signature, runtime_names = manifest.signature, manifest.artifact.runtime_names
    inputs, outputs = names.parameters(signature.inputs, KEYWORDS), names.parameters(signature.outputs, KEYWORDS)
    image = image_input(manifest.preprocess, signature)
    values = {
        "package": package,
        "imports": "import android.content.Context" + ("\nimport android.graphics.Bitmap" if image else ""),
        "summary": names.summary(manifest),
        "class": name,
        "asset": text(asset),
        "inputs": ",\n            ".join(tensor(spec, runtime_names.get(spec.name, spec.name)) for spec in signature.inputs),
        "outputs": ",\n            ".join(tensor(spec, runtime_names.get(spec.name, spec.name)) for spec in signature.outputs),
        "parameters": ", ".join(f"{name}: {value_type(spec)}" for name, spec in zip(inputs, signature.inputs, strict=True)),
        "arguments": ", ".join(inputs),
        "documents": "".join(f"\n     * @param {name} {names.meaning(spec)}" for name, spec in zip(inputs, signature.inputs, strict=True)),
        "properties": "\n".join(
            f"        /** {names.meaning(spec)} */\n        public val {name}: {value_type(spec)},"
            for name, spec in zip(outputs, signature.outputs, strict=True)
        ),
        "results": ", ".join(f"results[{index}] as {value_type(spec)}" for index, spec in enumerate(signature.outputs)),
        "image": f"\n        private val IMAGE = {image}\n" if image else "",
    }
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], _CLASS.replace("@bitmap@", _BITMAP if image else ""))


def golden_test(manifest: Manifest, package: str, name: str, assets: str) -> str:
    """The file of an instrumented test that runs a golden sample and compares it with the artifact's answer on the desktop."""
    signature, outputs = manifest.signature, names.parameters(manifest.signature.outputs, KEYWORDS)
    least_db = manifest.target.tolerance.device.min_sqnr_db or 40.0
    inputs = (f"golden.{_READERS[value_type(spec)]}({text(f'inputs-{index}')})" for index, spec in enumerate(signature.inputs))
    expected = [f"golden.{_READERS[value_type(spec)]}({text(f'host-{index}')})" for index, spec in enumerate(signature.outputs)]
    values = {
        "package": package,
        "class": name,
        "assets": assets,
        "inputs": ", ".join(inputs),
        "checks": "\n".join(
            f"            golden.check({text(spec.name)}, {expected[index]}, outputs.{outputs[index]}, {least_db!r})"
            for index, spec in enumerate(signature.outputs)
        ),
    }
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], _GOLDEN_TEST)


def image_input(preprocess: Preprocess | None, signature: Signature) -> str:
    """The call that makes the stored preprocessing; empty when there is none to make."""
    fields = names.image_fields(preprocess, signature)
    if fields is None:
        return ""
    arguments = "\n".join(f"            {name} = {_literal(value)}," for name, value in fields.items())
    return f"ImageInput(\n{arguments}\n        )"


def _literal(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"Interpolation.{value.upper()}"
        case range():
            return f"{float(value.start)}..{float(value.stop - 1)}"
        case list():
            return f"doubleArrayOf({', '.join(map(repr, value))})"
        case _:
            return repr(value)


_CLASS = """package @package@

@imports@

/**
 * @summary@
 *
 * Made by edgekit; one instance runs one inference at a time. Close it to free the model.
 */
public class @class@(context: Context, threads: Int = 4) : AutoCloseable {
    private val model = LiteRtModel(context, ASSET, INPUTS, OUTPUTS, threads)

    /** What one run gives. */
    public class Outputs(
@properties@
    )

    /**
     * Run once.
     *@documents@
     */
    public fun run(@parameters@): Outputs {
        return Companion.named(this.model.run(listOf(@arguments@)))
    }
@bitmap@
    override fun close() {
        model.close()
    }

    private companion object {
        const val ASSET = @asset@
        val INPUTS = listOf(
            @inputs@,
        )
        val OUTPUTS = listOf(
            @outputs@,
        )
@image@
        fun named(results: List<Any>): Outputs = Outputs(@results@)
    }
}
"""

_BITMAP = """
    /** Run on an image, preprocessed as it was when the model was packaged: resized, cropped, normalized. */
    public fun run(image: Bitmap): Outputs {
        val colors = IntArray(image.getWidth() * image.getHeight())
        image.getPixels(colors, 0, image.getWidth(), 0, 0, image.getWidth(), image.getHeight())
        return run(colors, image.getWidth(), image.getHeight())
    }

    /** Run on colors as `Bitmap.getPixels` gives them, row by row. */
    public fun run(argb: IntArray, width: Int, height: Int): Outputs {
        return Companion.named(model.run(listOf(INPUTS[0].fromReal(IMAGE.values(argb, width, height)))))
    }
"""

_GOLDEN_TEST = """package @package@

import androidx.test.ext.junit.runners.AndroidJUnit4
import androidx.test.platform.app.InstrumentationRegistry
import org.junit.Test
import org.junit.runner.RunWith

/** What the desktop answered when the model was packaged, this device must answer. */
@RunWith(AndroidJUnit4::class)
public class @class@GoldenTest {
    @Test
    public fun answersAsTheDesktop() {
        val instrumentation = InstrumentationRegistry.getInstrumentation()
        val assets = instrumentation.getContext().getAssets()
        val golden = Golden { name -> assets.open("@assets@/$name.raw").use { it.readBytes() } }
        @class@(instrumentation.getTargetContext()).use { model ->
            val outputs = model.run(@inputs@)
@checks@
        }
    }
}
"""
