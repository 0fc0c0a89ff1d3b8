"""How coremltools is imported: without what no conversion needs, and TensorFlow added when one does."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
pytest.importorskip("coremltools")
pytest.importorskip("keras")

SCRIPT = """
import sys, tempfile
from pathlib import Path
import numpy as np
import torch
from edgekit import converters, formats, hops
from edgekit.formats import mlprogram_write, torch as torch_format

def difference(source):
    (hop,) = converters.route(source.format, ("mlprogram",))
    made = hop.convert(source, Path(tempfile.mkdtemp(dir=sys.argv[1])))
    samples = [{s.name: np.random.default_rng(0).normal(size=s.shape).astype(s.dtype) for s in source.signature.inputs}]
    wanted, got = (hops.run(formats.session(model), model.signature, samples)[0] for model in (source, made))
    return max(float(np.abs(wanted[name] - got[name]).max()) for name in wanted)

net = torch_format.from_module(torch.nn.Conv2d(3, 4, 3).eval(), (torch.zeros(1, 3, 8, 8),), {}, "net")
print(difference(net), "tensorflow" in sys.modules, "sklearn" in sys.modules)
import keras
layers = [keras.Input((8, 8, 3), batch_size=1), keras.layers.Conv2D(4, 3, activation="swish"), keras.layers.UpSampling2D(), keras.layers.Dense(5)]
keras.Sequential(layers).save(sys.argv[1] + "/other.keras")
print(difference(formats.open(sys.argv[1] + "/other.keras", {})), "tensorflow" in sys.modules)
print(difference(net))
"""


def test_a_keras_model_converts_after_a_torch_model_that_needed_no_tensorflow(tmp_path: object) -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    first, second, third = (line.split() for line in run.stdout.splitlines())
    assert float(first[0]) < 1e-5 and first[1:] == ["False", "False"]
    assert float(second[0]) < 1e-5 and second[1] == "True"
    assert float(third[0]) < 1e-5
