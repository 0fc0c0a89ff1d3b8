"""Verdicts for the neural engine, on programs written as values."""

from __future__ import annotations

import pytest

from edgekit import opset, target
from edgekit.graph import Graph, GraphTensor, Operator
from edgekit.opset import table


def one(kind: str, shapes: list[tuple[int, ...]], dtype: str = "float16", level: int = 1, **attributes: object) -> opset.Verdict:
    """The verdict on one operator: the last shape is its result's."""
    tensors = tuple(GraphTensor(f"t{i}", shape, dtype, constant=0 < i < len(shapes) - 1) for i, shape in enumerate(shapes))
    last = len(tensors) - 1
    operator = Operator(0, kind, 6, "layer", tuple(range(last)), (last,), dict(attributes))
    graph = Graph("mlprogram", tensors, (operator,), (0,), (last,), 0)
    return opset.judge(graph, "ane", {"ane_feature_level": level})[0]


@pytest.mark.parametrize("kind", ["conv", "linear", "softmax", "layer_norm", "gelu", "add", "concat", "constexpr_affine_dequantize"])
def test_half_precision_operators_are_taken(kind: str) -> None:
    weight = (4, 4, 3, 3) if kind == "conv" else (4, 4)
    assert one(kind, [(1, 4, 8, 8), weight, (1, 4, 8, 8)]).status == "accelerated"


@pytest.mark.parametrize(("kind", "shapes", "options", "said"), [
    ("conv", [(1, 4, 8, 8), (4, 4, 3, 3), (1, 4, 8, 8)], {"dtype": "float32"}, "half precision only (documented)"),
    ("add", [(8,), (8,)], {"dtype": "int32"}, "32-bit integers"),
    ("transpose", [(1, 2, 2, 2, 2, 2), (1, 2, 2, 2, 2, 2)], {}, "6 dimensions"),
    ("relu", [(1, 20000), (1, 20000)], {}, "20000 long"),
    ("conv", [(1, 4, 64, 64), (4, 4, 3, 15), (1, 4, 62, 50)], {}, "kernel is 3x15"),
    ("conv", [(1, 4, 8, 8, 8), (4, 4, 3, 3, 3), (1, 4, 6, 6, 6)], {}, "three dimensions"),
    ("reduce_argmax", [(1, 5000), (1,)], {"axis": 1}, "searches 5000"),
    ("lstm", [(4, 1, 8), (4, 1, 8)], {}, "issue 1780"),
    ("non_maximum_suppression", [(1, 9, 4), (1, 3, 4)], {}, "GPU or CPU"),
    ("scatter", [(4, 4), (4, 4)], {}, "observed by others"),
    ("fft", [(4, 4), (4, 4)], {}, "does not have fft"),
    ("resize_bilinear", [(1, 4, 8, 8), (1, 4, 16, 16)], {}, "feature level 2"),
])  # fmt: skip
def test_what_leaves_the_neural_engine_says_why(kind: str, shapes: list[tuple[int, ...]], options: dict[str, object], said: str) -> None:
    verdict = one(kind, shapes, **options)  # type: ignore[arg-type]
    assert verdict.status == "fallback" and said in verdict.reason


def test_newer_generations_take_more() -> None:
    shapes = [(1, 4, 8, 8), (1, 4, 16, 16)]
    assert one("resize_bilinear", shapes, level=2).status == "accelerated"
    assert [one("sin", shapes, level=level).status for level in (2, 3)] == ["fallback", "accelerated"]


def test_every_source_says_how_certain_it_is() -> None:
    assert all(source["certainty"] and source["for"] for source in table.load("ane").sources)


@pytest.mark.parametrize("name", sorted(name for name in target.paths() if name.endswith("-coreml")))
def test_profiles_differ_by_system_only(name: str) -> None:
    profile = target.load(name)
    assert profile.backend == "coreml" and profile.delegates == ("ane",)
    assert ("w8a8" in profile.precisions) == (profile.options["deployment"] != "iOS16")
    assert set(profile.tolerance.quantization) == set(profile.precisions)
