"""The native runner's 64-bit Arm build, with the pinned runtime libraries, on an emulated processor."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgekit import job as contract
from edgekit import runtimes
from edgekit.job import Delegation
from edgekit.tensors import TensorSpec
from tests import jobs, tiny
from tests.runner_models import TWINS, half_delegated, twin_samples, twins_onnx, twins_tflite

EMULATOR = shutil.which("qemu-aarch64-static")

ARM_CPUINFO = "".join(
    f"processor\t: {i}\nFeatures\t: fp asimd crc32 atomics\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0b\n\n" for i in range(2)
)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the 64-bit Arm build here, under qemu with the libraries of Debian's cross compiler.

    A processor is named: with all that qemu 7.2 can emulate switched on, LiteRT 2.3 computes wrong int8 values.
    """
    libraries = Path("/usr/aarch64-linux-gnu/lib")
    if not EMULATOR or not libraries.is_dir():
        pytest.skip("needs qemu-user-static and gcc-aarch64-linux-gnu")
    root = tmp_path_factory.mktemp("arm")
    (root / "lib").symlink_to(libraries)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(ARM_CPUINFO)  # runtimes ask it for the processor's features; the host's would mislead them
    return [EMULATOR, "-cpu", "cortex-a76", "-L", str(root), str(runtimes.runner("linux-aarch64"))]


@pytest.mark.slow
def test_arm_build_with_the_pinned_libraries(arm: list[str], tmp_path: Path) -> None:
    samples = twin_samples()
    for runtime, make in {"litert": twins_tflite, "onnxruntime": twins_onnx}.items():
        library = runtimes.install(runtime, "linux-aarch64")
        folder = jobs.write(tmp_path / runtime, make(tmp_path), samples, TWINS, library=library, min_runs=3)
        code, result = jobs.execute(arm, folder, tmp_path / f"{runtime}-out")
        assert (code, result.error) == (0, "")
        for sample, got in zip(samples, jobs.outputs(tmp_path / f"{runtime}-out", result), strict=True):
            np.testing.assert_array_equal(got["diff"], sample["x"] - sample["y"])
            np.testing.assert_array_equal(got["sum"], sample["x"] + sample["y"])


@pytest.mark.slow
def test_arm_build_counts_what_xnnpack_took(arm: list[str], tmp_path: Path) -> None:
    """The TfLite C interface tells every operator."""
    library = runtimes.install("litert", "linux-aarch64")
    for accelerator, expected in {
        "xnnpack": Delegation("xnnpack", 2, 3, 2, ("ADD",), ("REVERSE_V2",)),
        "cpu": Delegation("", 0, 3, 0, (), ("ADD", "REVERSE_V2")),
    }.items():
        sample, wanted = {"x": np.array([[1, 2, 3, 4]], "f")}, [TensorSpec("y", (1, 4), "float32")]
        folder = jobs.write(tmp_path / accelerator, half_delegated(tmp_path), [sample], wanted, library=library, accelerator=accelerator)
        _, result = jobs.execute(arm, folder, tmp_path / f"{accelerator}-out")
        assert result.delegation == expected
        np.testing.assert_array_equal(jobs.outputs(tmp_path / f"{accelerator}-out", result)[0]["y"], [[16, 12, 8, 4]])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 3), (1, 3)])
def test_arm_build_takes_an_open_dimension(arm: list[str], shape: tuple[int, int], tmp_path: Path) -> None:
    x, y = ("x", "float32", (-1, 3)), ("y", "float32", (-1, 3))
    model = tiny.write_tflite(tmp_path / "m.tflite", [x, y], [("ADD", ["x", "x"], ["y"])], ["x"], ["y"])
    sample = {"x": np.arange(math.prod(shape), dtype="f").reshape(shape)}
    folder = jobs.write(tmp_path / "job", model, [sample], [TensorSpec("y", shape, "float32")], library=runtimes.install("litert", "linux-aarch64"))
    _, result = jobs.execute(arm, folder, tmp_path / "out")
    assert result.error == ""
    np.testing.assert_array_equal(jobs.outputs(tmp_path / "out", result)[0]["y"], 2 * sample["x"])


@pytest.mark.slow
def test_efficientnet_on_arm_gives_torch_s_logits(arm: list[str], tmp_path: Path) -> None:
    """The trained network, through ONNX, on emulated Arm: the float source model is the reference."""
    torch = pytest.importorskip("torch")
    from tests.zoo import crops, models

    model, _ = models.efficientnet_lite0()
    image = torch.from_numpy(crops.crops(1, seed=4))
    torch.onnx.export(model, (image,), str(tmp_path / "m.onnx"), dynamo=True, external_data=False, input_names=["image"], output_names=["logits"])
    with torch.no_grad():
        expected = model(image).numpy()
    library = runtimes.install("onnxruntime", "linux-aarch64")
    folder = jobs.write(
        tmp_path / "job", tmp_path / "m.onnx", [{"image": image.numpy()}], [TensorSpec("logits", (1, 1000), "float32")], library=library
    )
    _, result = jobs.execute(arm, folder, tmp_path / "out")
    got = jobs.outputs(tmp_path / "out", result)[0]["logits"]
    np.testing.assert_allclose(got, expected, atol=1e-4)  # float32 sums in another order; the logits reach about 10
    assert got.argmax() == expected.argmax()
    assert contract.read_job(folder).runtime == "onnxruntime"
