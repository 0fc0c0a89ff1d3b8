"""Verdicts for the neural engine, on programs written as values."""

from __future__ import annotations

import pytest

from edgekit import opset, target
from edgekit.graph import Graph, GraphTensor, Operator
from edgekit.opset import table


def one(kind: str, shapes: list[tuple[int, ...]], dtype: str = "float16", level: int = 1, unit: str = "ane", **attributes: object) -> opset.Verdict:
    """The verdict on one operator: the last shape is its result's."""
    tensors = tuple(GraphTensor(f"t{i}", shape, dtype, constant=0 < i < len(shapes) - 1) for i, shape in enumerate(shapes))
    last = len(tensors) - 1
    operator = Operator(0, kind, 6, "layer", tuple(range(last)), (last,), dict(attributes))
    graph = Graph("mlprogram", tensors, (operator,), (0,), (last,), 0)
    return opset.judge(graph, unit, {"ane_feature_level": level, "kernels": "coreml_cpu"})[0]


@pytest.mark.parametrize("kind", ["conv", "linear", "softmax", "layer_norm", "gelu", "add", "concat", "constexpr_affine_dequantize"])
def test_half_precision_operators_are_taken(kind: str) -> None:
    weight = (4, 4, 3, 3) if kind == "conv" else (4, 4)
    assert one(kind, [(1, 4, 8, 8), weight, (1, 4, 8, 8)]).status == "accelerated"


@pytest.mark.parametrize(("kind", "shapes", "options", "said"), [
    ("conv", [(1, 4, 8, 8), (4, 4, 3, 3), (1, 4, 8, 8)], {"dtype": "float32"}, "half precision only (documented)"),
    ("add", [(8,), (8,)], {"dtype": "int32"}, "32-bit integers"),
    ("relu", [(1, 20000), (1, 20000)], {}, "20000 long"),
    ("conv", [(1, 4, 64, 64), (4, 4, 3, 15), (1, 4, 62, 50)], {}, "kernel is 3x15"),
    ("conv", [(1, 4, 8, 8, 8), (4, 4, 3, 3, 3), (1, 4, 6, 6, 6)], {}, "three dimensions"),
    ("reduce_argmax", [(1, 5000), (1,)], {"axis": 1}, "searches 5000"),
    ("lstm", [(4, 1, 8), (4, 1, 8)], {}, "issue 1780"),
    ("non_maximum_suppression", [(1, 9, 4), (1, 3, 4)], {}, "GPU or CPU"),
    ("scatter", [(4, 4), (4, 4)], {}, "observed by others"),
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
    assert all(source["certainty"] and source["for"] for unit in ("ane", "coreml_gpu", "coreml_cpu") for source in table.load(unit).sources)


def test_single_precision_runs_on_the_other_units() -> None:
    shapes = [(1, 4, 8, 8), (4, 4, 3, 3), (1, 4, 8, 8)]
    found = [one("conv", shapes, "float32", unit=unit).status for unit in ("ane", "coreml_gpu", "coreml_cpu")]
    assert found == ["fallback", "accelerated", "accelerated"]


@pytest.mark.parametrize(("kind", "said"), [("resample", "issue 1875"), ("lstm", "issue 337"), ("while_loop", "inferred: no source")])
def test_what_was_seen_on_the_cpu_says_by_whom(kind: str, said: str) -> None:
    verdict = one(kind, [(1, 4, 8, 8), (1, 4, 8, 8)], unit="coreml_gpu")
    assert verdict.status == "fallback" and said in verdict.reason
    assert one(kind, [(1, 4, 8, 8), (1, 4, 8, 8)], unit="coreml_cpu").status == "accelerated"


def test_six_axes_are_too_many_for_every_unit() -> None:
    verdict = one("transpose", [(1, 2, 2, 2, 2, 2), (1, 2, 2, 2, 2, 2)])
    assert verdict.status == "unsupported" and "6 dimensions" in verdict.reason


@pytest.mark.parametrize("unit", ["ane", "coreml_gpu", "coreml_cpu"])
def test_an_operator_that_core_ml_does_not_have_runs_nowhere(unit: str) -> None:
    verdict = one("fft", [(4, 4), (4, 4)], unit=unit)
    assert verdict.status == "unsupported" and "does not have fft" in verdict.reason
    newer = one("scaled_dot_product_attention", [(1, 4, 8, 8), (1, 4, 8, 8)], unit=unit)  # of iOS 18, in a program for iOS 16
    assert newer.status == "unsupported" and "from 8" in newer.reason


def test_every_operator_that_the_interpreter_runs_is_in_the_tables() -> None:
    pytest.importorskip("torch")
    from edgekit.virtual.coreml import kernels

    known = set(table.load("coreml_cpu").ops)
    assert set(kernels.load()) - known == set()
    assert known == set(table.load("coreml_gpu").ops) | set(table.load("coreml_gpu").left)


@pytest.mark.parametrize("name", sorted(name for name in target.paths() if name.endswith("-coreml")))
def test_profiles_differ_by_system_only(name: str) -> None:
    profile = target.load(name)
    assert profile.backend == "coreml" and profile.delegates == ("ane", "coreml_gpu", "coreml_cpu")
    assert profile.options["kernels"] == "coreml_cpu"
    assert ("w8a8" in profile.precisions) == (profile.options["deployment"] != "iOS16")
    assert set(profile.tolerance.quantization) == set(profile.precisions) - set(profile.options["on_request"])
