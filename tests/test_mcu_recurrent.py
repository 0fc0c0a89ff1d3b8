"""Recurrent nets of integers, from Keras and torch: LiteRT's reference kernels, TFLM here and TFLM on emulated cores give the same bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite_micro")

from edgekit import bundle, packager
from edgekit.formats import Model, tflite, tflm
from tests import micro_conformance

pytestmark = pytest.mark.slow

STEPS, WIDTH, HIDDEN = 6, 4, 12
SOURCES = {"lstm of keras": "w8a8", "lstm of keras in 16 bits": "w8a16", "gru of torch": "w8a8"}
_ABSENT = [name for name in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(name) is None]


def walks(count: int, seed: int) -> Any:
    """Smooth walks, as sensors give them: float32 [count, 1, steps, width]."""
    return np.cumsum(np.random.default_rng(seed).normal(0, 0.5, (count, 1, STEPS, WIDTH)), axis=2).astype(np.float32)


def keras_net(path: Path) -> str:
    keras = pytest.importorskip("tensorflow").keras
    keras.utils.set_random_seed(1)
    layers = keras.layers
    keras.Sequential([keras.Input((STEPS, WIDTH), name="x"), layers.LSTM(HIDDEN, unroll=True), layers.Dense(40)]).save(path / "net.keras")
    return str(path / "net.keras")


def gru() -> Any:
    """For `package.module:function`."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = torch.nn.GRU(WIDTH, HIDDEN, batch_first=True), torch.nn.Linear(HIDDEN, 40)

        def forward(self, x: Any) -> Any:
            return self.head(self.recurrent(x)[0][:, -1])

    torch.manual_seed(3)
    return Net().eval(), (torch.zeros(1, STEPS, WIDTH),)


@pytest.fixture(scope="module", params=sorted(SOURCES))
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("net")
    np.savez(folder / "data.npz", x=walks(24, 2)[:, 0])
    source = "tests.test_mcu_recurrent:gru" if "torch" in request.param else keras_net(folder)
    options = packager.Options(out=folder, rebuild=True, calibration=str(folder / "data.npz"), precision=SOURCES[request.param])
    outcome = packager.package(source, "mcu-cortex-m4", options)
    assert outcome.bundle and any("TFLM equals LiteRT's reference kernels" in notice for notice in outcome.manifest.notices)
    with bundle.open(outcome.bundle) as opened:
        yield tflite.open(str(opened.extract(opened.manifest.artifact.main, folder)[0]), {})


def inputs(model: Model) -> list[dict[str, Any]]:
    """Stored values: of walks, and random over the whole range."""
    (spec,), rng = model.signature.inputs, np.random.default_rng(4)
    natural = [np.clip(np.rint(x.reshape(spec.shape) / spec.scale) + spec.zero_point, -128, 127) for x in walks(60, 5)]
    return [{spec.name: x.astype(np.int8)} for x in (*natural, *rng.integers(-128, 128, (60, *spec.shape)))]


def test_litert_and_tflm_give_the_same_bytes(net: Model) -> None:
    assert net.path
    given, reference, micro = inputs(net), tflite.session(net, reference_kernels=True), tflm.Interpreter(net.path, net.signature)
    wanted = [reference.run(sample) for sample in given]
    assert micro_conformance.steps_apart([micro.run(sample) for sample in given], wanted) == 0
    assert all(len(np.unique([sample[name] for sample in wanted])) > 30 for name in wanted[0]), "outputs that do not move prove nothing"


def test_the_steps_of_a_loop_share_their_weights(net: Model) -> None:
    """Also scales and biases: the steps have one grid before the layer and one behind it."""
    assert net.path
    layers = [o for o in tflite.graph(net.path).operators if o.type in ("FULLY_CONNECTED", "CONV_2D")]
    assert len(layers) > STEPS and len({operator.inputs[1] for operator in layers}) <= 4


@pytest.mark.skipif(bool(_ABSENT) and not os.environ.get("CI"), reason=f"not installed here: {', '.join(_ABSENT)}")
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m55"])
def test_cores_give_the_same_bytes(net: Model, tmp_path: Path, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    micro_conformance.give_interpreter(core, monkeypatch)
    assert net.path
    given, reference = inputs(net)[50:70], tflite.session(net, reference_kernels=True)
    found = micro_conformance.on_core(core, "tflm", net.path, net.signature, [list(sample.values()) for sample in given], tmp_path / "run")
    assert micro_conformance.steps_apart(found, [reference.run(sample) for sample in given]) == 0
