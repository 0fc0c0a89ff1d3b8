"""Weights that are stored otherwise than those of layers of their own: recurrent ones, embeddings, shared ones; and too few of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import converters, formats, hops, target
from edgekit.backends import Artifact, Context, coreml
from edgekit.formats import torch as torch_format
from edgekit.planner import Candidate
from tests.decibels import output_db

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("coremltools")
nn = torch.nn


class Words(nn.Module):
    """An embedding, an LSTM of both directions, and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(200, 48), nn.LSTM(48, 40, batch_first=True, bidirectional=True)
        self.up = nn.ConvTranspose1d(80, 32, 3, stride=2)

    def forward(self, words: Any) -> Any:
        return self.up(self.lstm(self.embedding(words))[0].transpose(1, 2))


class Octaves(nn.Module):
    """One filter over several octaves."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.head = nn.Conv1d(4, 64, 32, padding="same"), nn.Conv1d(64, 4, 1)

    def forward(self, x: Any) -> Any:
        found = []
        for _ in range(4):
            found.append(self.head(self.filter(x)).mean(-1))
            x = nn.functional.avg_pool1d(x, 2)
        return torch.stack(found, 1)


class Little(nn.Module):
    """Layers of few weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(8, 8), nn.ReLU())))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def built(net: type, rows: list[Any], folder: Path, profile: str, precisions: tuple[str, ...]) -> dict[str, tuple[Artifact, float, int]]:
    """For each precision the artifact, its SQNR in dB on the rows, and its bytes."""
    torch.manual_seed(0)
    source = torch_format.from_module(net().eval(), (torch.from_numpy(rows[0]),), {}, net.__name__.lower())
    samples = [{source.signature.inputs[0].name: row} for row in rows]
    (hop,) = converters.route(source.format, coreml.accepts)
    for name in ("hop", "build"):
        (folder / name).mkdir(parents=True)
    build = coreml.prepare(hop.convert(source, folder / "hop"), Context(target.load(profile), samples, folder / "build"))
    output = source.signature.outputs[0].name
    wanted = hops.run(formats.session(source), source.signature, samples)
    made = {}
    for precision in precisions:
        artifact = build(Candidate(precision))
        found = hops.run(coreml.emulate(artifact), artifact.signature, samples)
        made[precision] = artifact, output_db(wanted, found, output), sum(path.stat().st_size for path in artifact.path.rglob("*") if path.is_file())
    return made


@pytest.mark.parametrize("profile", ["ios-coreml", "ios18-coreml"])
def test_recurrent_transposed_and_embedded_weights_are_compressed(profile: str, tmp_path: Path) -> None:
    """Before iOS 17 recurrent operators compute in single precision only; their weights are stored in half all the same."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 200, (1, 9)) for _ in range(4)]
    made = built(Words, rows, tmp_path, profile, ("fp32", "fp16", "w8", "p6"))
    weights = 200 * 48 + 2 * 4 * 40 * (48 + 40) + 80 * 32 * 3
    around_bytes = made["fp32"][2] - 4 * weights
    for precision, each_bytes, least_db in (("fp16", 2, 55), ("w8", 1, 35), ("p6", 0.75, 28)):
        artifact, decibels, size = made[precision]
        assert size <= each_bytes * weights + around_bytes + 9000 and decibels >= least_db
        assert not any("too little" in told for told in artifact.notices)


def test_a_filter_of_several_octaves_is_stored_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(1, 4, 128)).astype(np.float32) for _ in range(4)]
    made = built(Octaves, rows, tmp_path, "ios-coreml", ("fp32", "fp16", "w8", "p6"))
    weights = 4 * 64 * 32
    for precision, saved_bytes, least_db in (("fp16", 2, 50), ("w8", 3, 30), ("p6", 3.25, 25)):
        assert made[precision][2] <= made["fp32"][2] - saved_bytes * weights + 6000 and made[precision][1] >= least_db


def test_too_little_to_compress_is_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(1, 8)).astype(np.float32) for _ in range(4)]
    made = built(Little, rows, tmp_path, "ios17-coreml", ("fp16", "w8", "w8a8"))
    for precision in ("w8", "w8a8"):
        artifact, _, size = made[precision]
        (told,) = (told for told in artifact.notices if "too little" in told)
        named = [int(number) for number in re.findall(r"(\d{3,})", told)]
        assert named == [size, made["fp16"][2]] and named[0] >= named[1]
        assert "--precision fp16" in told
