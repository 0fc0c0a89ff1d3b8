"""Sizes worked out by hand from what ESP-NN 1.2.3 copies for a layer: its filter, its input with what pads it, sums of each channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgekit import packager
from edgekit.budget import esp_nn_scratch, tflm_scratch
from edgekit.formats import tflite
from edgekit.graph import Graph, GraphTensor, Operator
from tests import micro_nets

SAME, HALVED, VALID = {"padding": "SAME"}, {"padding": "SAME", "stride_h": 2, "stride_w": 2}, {"padding": "VALID"}


def asked(kind: str, given: Any, filters: Any, made: Any, dtype: str = "int8", **attributes: Any) -> int:
    tensors = [GraphTensor(str(i), shape, dtype) for i, shape in enumerate((given, filters, made))]
    operator = Operator(0, kind, 1, kind, (0, 1), (2,), {"stride_h": 1, "stride_w": 1, **attributes})
    return esp_nn_scratch.scratch_bytes(Graph("tflite", tuple(tensors), (operator,), (0,), (2,), 0), operator)


@pytest.mark.parametrize(
    ("given", "filters", "made", "how", "wanted"),
    [
        # pointwise, 3 channels as 8: the input again, the filter, eight places of 16 bits, 64 to align
        ((1, 8, 8, 3), (8, 1, 1, 3), (1, 8, 8, 8), SAME, 8 * 8 * 8 + 8 * 8 + 16 * 8 + 64),
        # pointwise at two places: nothing is transposed
        ((1, 1, 2, 16), (10, 1, 1, 16), (1, 1, 2, 10), SAME, 16 * 10 + 64),
        # three channels under 3 x 3: a window of 27 values as a row of 32, for each of 8 filters and once more
        ((1, 8, 8, 3), (8, 3, 3, 3), (1, 8, 8, 8), SAME, 8 * 4 + 9 * 32 + 32 + 64),
        # 16 channels: the input padded on both sides, and once more as far as the filter reaches; the filter twice
        ((1, 8, 8, 16), (4, 3, 3, 16), (1, 8, 8, 4), SAME, 2 * 10 * 10 * 16 + 9 * 16 * 4 + 48 * 3 * 4 + 4 * 4 + 64),
        # stride 2 pads only behind the input
        ((1, 8, 8, 16), (4, 3, 3, 16), (1, 4, 4, 4), HALVED, 10 * 10 * 16 + 9 * 16 * 4 + 48 * 3 * 4 + 4 * 4 + 64),
        ((1, 8, 8, 16), (4, 3, 3, 16), (1, 6, 6, 4), VALID, 9 * 16 * 4 + 48 * 3 * 4 + 4 * 4 + 64),
    ],
)
def test_convolutions(given: Any, filters: Any, made: Any, how: Any, wanted: int) -> None:
    assert asked("CONV_2D", given, filters, made, **how) == wanted


@pytest.mark.parametrize(
    ("given", "filters", "made", "how", "wanted"),
    [
        ((1, 8, 8, 16), (1, 3, 3, 16), (1, 8, 8, 16), SAME, 9 * 16 + 10 * 10 * 16 + 16),
        # a padded input of more than 40 KB is taken in strips of three rows
        ((1, 48, 48, 32), (1, 3, 3, 32), (1, 48, 48, 32), SAME, 9 * 32 + 50 * 3 * 32 + 16),
        # 24 channels as 32: filter, padded input (on both sides, and as far as the filter reaches), and the output
        ((1, 8, 8, 24), (1, 3, 3, 24), (1, 8, 8, 24), SAME, 9 * 32 + 12 * 12 * 32 + 8 * 8 * 32 + 64),
        ((1, 8, 8, 8), (1, 3, 3, 8), (1, 8, 8, 8), SAME, 2 * (9 * 8 + 8 * 8 * 8) + 32),
        ((1, 8, 8, 16), (1, 5, 5, 16), (1, 8, 8, 16), SAME, 2 * (25 * 16 + 8 * 8 * 16) + 32),
        # 16-bit copies of more than 48 KB are taken in five rows
        ((1, 48, 48, 16), (1, 5, 5, 16), (1, 48, 48, 16), SAME, 2 * 25 * 16 + 2 * 48 * 5 * 16 + 32),
        # 5 channels as 8, each part aligned to 16: filter and input of 16 bits, output, bias, shifts and multipliers
        ((1, 8, 8, 5), (1, 3, 3, 5), (1, 8, 8, 5), SAME, 144 + 1024 + 512 + 3 * 32 + 16),
        ((1, 8, 8, 1), (1, 3, 3, 8), (1, 8, 8, 8), {"padding": "SAME", "depth_multiplier": 8}, 2 * (9 * 8 + 8 * 8) + 32),
        ((1, 8, 8, 3), (1, 3, 3, 3), (1, 8, 8, 3), SAME, 32),
    ],
)
def test_depthwise_layers(given: Any, filters: Any, made: Any, how: Any, wanted: int) -> None:
    assert asked("DEPTHWISE_CONV_2D", given, filters, made, **how) == wanted


def test_what_has_no_such_kernel_asks_for_nothing() -> None:
    assert asked("SOFTMAX", (1, 10), (), (1, 10)) == 40
    assert asked("SOFTMAX", (10,), (), (10,)) == 0
    assert asked("CONV_2D", (1, 8, 8, 16), (4, 3, 3, 16), (1, 8, 8, 4), dtype="int16", padding="SAME") == 0
    assert asked("FULLY_CONNECTED", (1, 8), (4, 8), (1, 4)) == 0


def test_it_is_part_of_the_arena_and_said_to_be_estimated(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro")
    net = micro_nets.classifier(tmp_path / "net.tflite")
    graph = tflite.graph(net)
    # the depthwise layer of 8 channels, where most is alive: 1,200 bytes as worked out above; the pointer kept for each of three
    assert 1200 <= tflm_scratch.extra_bytes(graph, ("esp_nn",)) < 1200 + 200
    made = packager.package(str(net), "mcu-esp32s3", packager.Options(out=tmp_path, rebuild=True))
    (part,) = (part for part in made.manifest.usage.parts if part.name == "scratch of ESP-NN")
    assert part.kind == "estimated" and part.installed_bytes >= 1200
    assert any("scratch of ESP-NN's kernels, estimated at most" in said for said in made.manifest.notices)
