"""Non-maximum suppression against TensorFlow and by hand; which operators of Core ML the interpreter does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.opset import table
from tests.coreml_operator import quick, seeds

torch = pytest.importorskip("torch")

from edgekit.virtual.coreml import kernels  # noqa: E402  (the kernels need torch)
from edgekit.virtual.coreml.kernels.detect import non_maximum_suppression as suppressed  # noqa: E402

REFUSED = {"classify", "conv_quantized", "random_bernoulli", "random_categorical", "random_normal", "random_uniform"}
"""Labels have no place in a bundle, the second is no longer emitted, and random numbers of another generator cannot be compared."""


def test_every_operator_of_core_ml_is_there_but_those_without_meaning_here() -> None:
    known = set(table.load("coreml_cpu").ops) - {"cond", "while_loop", "read_state", "write_state"}
    assert known - set(kernels.load()) == REFUSED


def test_a_lower_box_that_overlaps_is_dropped_and_the_rest_padded() -> None:
    boxes = torch.tensor([[[0.0, 0, 2, 2], [0.5, 0, 2, 2], [5, 5, 2, 2], [9, 9, 2, 2]]])
    scores = torch.tensor([[[0.9], [0.8], [0.7], [0.1]]])
    rows, kept, indices, count = suppressed(boxes, scores, 0.5, 3, score_threshold=0.2)  # 3 of 5 units overlap
    assert indices.tolist() == [[0, 2, -1]] and count.tolist() == [2]
    assert rows[0].tolist() == [[0, 0, 2, 2], [5, 5, 2, 2], [0, 0, 0, 0]] and kept[0].flatten().tolist() == pytest.approx([0.9, 0.7, 0])
    assert suppressed(boxes, scores, 0.65, 3, score_threshold=0.2)[2].tolist() == [[0, 1, 2]]


def test_the_newer_form_has_boxes_last_and_no_count() -> None:
    boxes, scores = torch.rand(2, 6, 4, generator=torch.manual_seed(1)), torch.rand(2, 6, 3, generator=torch.manual_seed(2))
    older = suppressed(boxes, scores, 0.1, 4, score_threshold=-1.0, per_class_suppression=True)
    newer = suppressed(boxes.transpose(1, 2), scores.transpose(1, 2), 0.1, 4, per_class_suppression=True)
    assert len(newer) == 3 and all(a.transpose(1, 2).equal(b) for a, b in zip(newer[:2], older[:2], strict=True)) and newer[2].equal(older[2])


def greedy(boxes: Any, scores: Any, overlap: float, least: float, count: int, per_class: bool) -> list[int]:
    """As the definition reads, on corners and one box after another."""
    corners = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in boxes.astype(np.float64)]
    left = sorted(range(len(corners)), key=lambda i: -scores[i].max())
    kept: list[int] = []
    while left and len(kept) < count:
        first = left.pop(0)
        if scores[first].max() > least:
            kept.append(first)
            left = [i for i in left if (per_class and scores[i].argmax() != scores[first].argmax()) or share(corners[first], corners[i]) <= overlap]
    return kept


def share(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    inside = wide * high if wide > 0 and high > 0 else 0.0
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inside
    return inside / both if both > 0 else 0.0


@quick
@given(
    seed=seeds,
    boxes=st.integers(1, 30),
    classes=st.integers(1, 4),
    count=st.integers(1, 12),
    per_class=st.booleans(),
    overlap=st.floats(0.05, 0.9),
)
def test_suppression_by_the_definition(seed: int, boxes: int, classes: int, count: int, per_class: bool, overlap: float) -> None:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.uniform(0, 4, (2, boxes, 2)), rng.uniform(0.2, 3, (2, boxes, 2))], axis=2).astype(np.float32)
    scores = rng.uniform(0, 1, (2, boxes, classes)).astype(np.float32)
    tensors = torch.from_numpy(rows), torch.from_numpy(scores)
    found = suppressed(*tensors, overlap, count, score_threshold=0.3, per_class_suppression=per_class)
    for batch in range(2):
        wanted = greedy(rows[batch], scores[batch], overlap, 0.3, count, per_class)
        assert found[2][batch].tolist() == wanted + [-1] * (count - len(wanted)) and int(found[3][batch]) == len(wanted)
        np.testing.assert_array_equal(found[0][batch][: len(wanted)].numpy(), rows[batch][wanted])


@pytest.mark.slow
def test_suppression_against_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = np.concatenate([rng.uniform(0, 4, (1, 40, 2)), rng.uniform(0.2, 3, (1, 40, 2))], axis=2).astype(np.float32)
        scores = rng.uniform(0, 1, (1, 40, 1)).astype(np.float32)
        corners = np.concatenate([rows[0, :, :2] - rows[0, :, 2:] / 2, rows[0, :, :2] + rows[0, :, 2:] / 2], axis=1)
        wanted = tf.image.non_max_suppression(corners, scores[0, :, 0], 12, 0.3, 0.2).numpy().tolist()
        found = suppressed(torch.from_numpy(rows), torch.from_numpy(scores), 0.3, 12, score_threshold=0.2)
        assert found[2][0].tolist()[: len(wanted)] == wanted and int(found[3][0]) == len(wanted)
