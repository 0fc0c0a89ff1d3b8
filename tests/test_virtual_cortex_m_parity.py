from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.job import Job, TensorFile, read_result
from edgekit.tensors import TensorSpec, write_raw
from edgekit.transports import virtual
from tests import jobs
from tests.micro_conformance import give_interpreter

pytestmark = pytest.mark.slow
tf = pytest.importorskip("tensorflow")  # here, and not in a test: loaded after the HTP simulator of other tests it would crash

_ABSENT = [name for name in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(name) is None]
needs_emulator = pytest.mark.skipif(bool(_ABSENT) and not os.environ.get("CI"), reason=f"not installed here: {', '.join(_ABSENT)}")
SAMPLES = 4
MOST_INSTRUCTIONS = {"cortex-m4": 33_000_000, "cortex-m55": 24_000_000}


def small(layers: Any) -> tuple[Any, Any]:
    given = layers.Input(batch_shape=(1, 16, 16, 1))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(given)
    x = layers.Add()([x, layers.DepthwiseConv2D(3, padding="same", activation="relu")(x)])
    return given, layers.Conv2D(10, 1)(layers.AveragePooling2D(8)(layers.MaxPool2D(2)(x)))


def depthwise(layers: Any) -> tuple[Any, Any]:
    """MobileNet V1 at a quarter of its width on 96x96 gray pixels: 8 depthwise blocks, 18 convolutions."""
    spread = tf.keras.initializers.RandomNormal(0, 0.5)
    given = layers.Input(batch_shape=(1, 96, 96, 1))
    x = layers.Conv2D(8, 3, 2, padding="same", activation="relu")(given)
    for stride, channels in ((1, 16), (2, 32), (1, 32), (2, 64), (1, 64), (2, 128), (1, 128), (2, 256)):
        x = layers.DepthwiseConv2D(3, stride, padding="same", activation="relu", depthwise_initializer=spread)(x)
        x = layers.Conv2D(channels, 1, activation="relu", kernel_initializer="he_normal")(x)
    return given, layers.Conv2D(16, 1)(layers.AveragePooling2D(3)(x))


def convert(make: Any, path: Path) -> Path:
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Model(*make(tf.keras.layers))
    rng = np.random.default_rng(0)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([rng.uniform(-1, 1, model.input_shape).astype(np.float32)] for _ in range(10))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    path.write_bytes(converter.convert())
    return path


def generate(tflite: Path, folder: Path, given: TensorSpec, made: TensorSpec) -> Path:
    """bakenn's C with CMSIS-NN, and the interface of the firmware around it."""
    bakenn = pytest.importorskip("bakenn")
    target = bakenn.CORTEX_M4
    options = bakenn.CBackendOptions(kernel_policy=bakenn.KernelPolicy.AUTO, enable_cmsis_nn=True, target=target)
    bakenn.compile_tflite(str(tflite), str(folder), name="net", backend_options=options)
    header = next(path for path in folder.rglob("*.h") if "_infer(" in path.read_text() and "CMSIS" not in str(path))
    text = header.read_text()
    call = re.search(r"void (\w+_infer)\(", text)[1]  # type: ignore[index]  # a test that stops here says enough
    arena = int(re.search(r"_ARENA_SIZE (\d+)u", text)[1])  # type: ignore[index]
    (folder / "edgekit_model.h").write_text(
        f"#define EDGEKIT_MODEL_INTERFACE 1\n#define EDGEKIT_INPUTS 1\n#define EDGEKIT_OUTPUTS 1\n#define EDGEKIT_INPUT_BYTES {{{given.elements}}}\n"
        f"#define EDGEKIT_OUTPUT_BYTES {{{made.elements}}}\nint edgekit_model_init(void);\n"
        "int edgekit_model_run(const void *const inputs[], void *const outputs[]);\n"
    )
    (folder / "edgekit_model.c").write_text(
        f'#include "{header.name}"\n#include "edgekit_model.h"\nstatic uint8_t arena[{arena}] __attribute__((aligned(16)));\n'
        "int edgekit_model_init(void) { return 0; }\nint edgekit_model_run(const void *const inputs[], void *const outputs[]) "
        f"{{ {call}(arena, inputs[0], outputs[0]); return 0; }}\n"
    )
    tensors = {"inputs": [{"name": "x", "shape": given.shape, "dtype": "int8"}], "outputs": [{"name": "y", "shape": made.shape, "dtype": "int8"}]}
    (folder / "edgekit_model.json").write_text(
        json.dumps({"interface": 1, **tensors, "arena_bytes": arena, "defines": ["BAKENN_CMSIS_NN_BUILTIN_MEMORY"]})
    )
    return folder


def run(device: str, artifact: Path, folder: Path, runtime: str, inputs: Any, made: TensorSpec) -> tuple[list[Any], dict[str, int]]:
    (folder / "result").mkdir(parents=True)
    (folder / "job").mkdir()
    (shutil.copytree if artifact.is_dir() else shutil.copy)(artifact, folder / "job" / artifact.name)
    samples = []
    for i, x in enumerate(inputs):
        write_raw(folder / "job" / f"{i}.raw", x)
        samples.append((TensorFile("x", "int8", x.shape, f"{i}.raw"),))
    options = {"match": "index"} if runtime == "tflm" else {}
    jobs.contract.write(folder / "job", Job(runtime, artifact.name, tuple(samples), (TensorSpec("y", made.shape, "int8"),), options=options))
    link = virtual.connect(device, {})
    link.execute(folder / "job", folder / "result", 200)
    result = read_result(folder / "result")
    assert result.status == "ok", result.error
    assert not result.latency_ns
    return [x["y"] for x in jobs.outputs(folder / "result", result)], result.counters


def reference(tflite: Path, inputs: Any) -> list[Any]:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(str(tflite), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    outputs = []
    for x in inputs:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
    return outputs


@needs_emulator
@pytest.mark.parametrize("make", [small, depthwise])
def test_cores_and_tflm_equal_the_reference_kernels_to_the_byte(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tflite = convert(make, tmp_path / "net.tflite")
    size = 16 if make is small else 96
    given, made = TensorSpec("x", (1, size, size, 1), "int8"), TensorSpec("y", (1, 1, 1, 10 if make is small else 16), "int8")
    inputs = np.random.default_rng(1).integers(-128, 128, (SAMPLES, *given.shape)).astype(np.int8)
    wanted = reference(tflite, inputs)
    assert len(np.unique(wanted)) >= 4, "outputs that hardly move prove nothing"
    outputs, counters = run("cortex-m4", tflite, tmp_path / "tflm", "tflm", inputs, made)
    np.testing.assert_array_equal(outputs, wanted)
    assert counters["arena_bytes"] > given.elements
    give_interpreter("cortex-m55", monkeypatch)
    outputs, counters = run("cortex-m55", tflite, tmp_path / "tflm-m55", "tflm", inputs, made)
    np.testing.assert_array_equal(outputs, wanted)
    print(make.__name__, "TFLM", counters)
    assert counters["arena_bytes"] > given.elements and 10_000 < counters["instructions"] < 2 * MOST_INSTRUCTIONS["cortex-m55"]
    artifact = generate(tflite, tmp_path / "made", given, made)
    for core, most in MOST_INSTRUCTIONS.items():
        outputs, counters = run(core, artifact, tmp_path / core, "micro-c", inputs, made)
        np.testing.assert_array_equal(outputs, wanted)
        print(make.__name__, core, counters)
        assert counters["instructions"] <= most
