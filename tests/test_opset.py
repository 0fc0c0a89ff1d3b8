from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit import opset, target
from edgekit.errors import UsageError
from edgekit.formats import tflite, tflite_reader
from edgekit.graph import Graph, Operator
from edgekit.opset import partition, table
from tests import delegated, tflite_operators
from tests.tflite_build import Net
from tests.zoo import fetch

NOWHERE = Path("x.tflite")
DELEGATES = ("xnnpack", "gpu", "nnapi")


def graph_of(data: bytes) -> Graph:
    return tflite_reader.parse(data, NOWHERE).graph


def verdict(data: bytes, delegate: str, **options: int) -> opset.Verdict:
    return opset.judge(graph_of(data), delegate, options)[0]


def test_xnnpack_verdicts_are_what_the_runtime_does_on_single_operators() -> None:
    from ai_edge_litert.interpreter import Interpreter

    asked, wrong = 0, []
    for name, data in tflite_operators.cases():
        interpreter = Interpreter(model_content=data)
        try:
            interpreter.allocate_tensors()
        except RuntimeError:  # the runtime has no kernel for this type at all
            continue
        asked += 1
        _, nodes = delegated.taken(interpreter)
        found = verdict(data, "xnnpack")
        if (nodes == 1) != (found.status == "accelerated"):
            wrong.append((name, found.status, found.reason))
    assert asked > 380 and wrong == []


@pytest.mark.parametrize("name", ["face-detection-short-range", "selfie-segmentation", "palm-detection-lite", "pose-detection", "basic-pitch-tflite",
                                  "wake-word-alexa", "wake-word-hey-jarvis"])  # fmt: skip
def test_xnnpack_verdicts_are_what_the_runtime_does_on_the_zoo(name: str) -> None:
    graph = tflite.graph(fetch.path(name))
    real, nodes = delegated.by_xnnpack(fetch.path(name))
    verdicts = opset.judge(graph, "xnnpack")
    main = {o.index for o in graph.operators if not o.attributes.get("subgraph")}
    assert {v.operator for v in verdicts if v.status == "accelerated"} & main == real
    summary = opset.summary(graph, verdicts)[0]
    assert (summary.partitions, summary.accelerated) == (nodes, len(real))


def int8_net(tmp_path: Path, *, pool: str = "MEAN") -> Path:
    """CONV_2D, DEPTHWISE_CONV_2D per channel, ADD, pool, FULLY_CONNECTED, SOFTMAX: int8 as a quantizer writes it."""
    net, per_channel = Net(), [0.01, 0.02, 0.03, 0.04]
    x = net.tensor("x", (1, 8, 8, 4), "int8", scale=0.05)
    a, b, c = (net.tensor(n, (1, 8, 8, 4), "int8", scale=0.1, zero_point=3) for n in "abc")
    p, f = net.tensor("p", (1, 4), "int8", scale=0.1, zero_point=3), net.tensor("f", (1, 3), "int8", scale=0.2)
    y = net.tensor("y", (1, 3), "int8", scale=1 / 256, zero_point=-128)
    bias = [net.constant(f"b{i}", np.zeros(4, np.int32), scale=np.array(per_channel) * s) for i, s in enumerate((0.05, 0.1))]
    w = net.constant("w", np.ones((4, 3, 3, 4), np.int8), scale=per_channel, axis=0)
    d = net.constant("d", np.ones((1, 3, 3, 4), np.int8), scale=per_channel, axis=3)
    dense = net.constant("dense", np.ones((3, 4), np.int8), scale=0.01)
    size = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    net.add("CONV_2D", [x, w, bias[0]], [a], version=3, table="Conv2DOptions", **size)
    net.add("DEPTHWISE_CONV_2D", [a, d, bias[1]], [b], version=3, table="DepthwiseConv2DOptions", depthMultiplier=1, **size)
    net.add("ADD", [a, b], [c], version=2, table="AddOptions")
    net.add("MEAN", [c, tflite_operators.integers(net, "axes", [1, 2])], [p], version=2, table="ReducerOptions")
    net.add("FULLY_CONNECTED", [p, dense, -1], [f], version=4, table="FullyConnectedOptions")
    net.add("SOFTMAX", [f], [y], version=2, table="SoftmaxOptions", beta=1.0)
    return net.write(tmp_path / "int8.tflite", [x], [y])


def test_an_int8_net_runs_on_xnnpack_up_to_its_softmax(tmp_path: Path) -> None:
    path = int8_net(tmp_path)
    verdicts = opset.judge(tflite.graph(path), "xnnpack")
    assert [v.status for v in verdicts] == ["accelerated"] * 5 + ["fallback"]
    assert verdicts[-1].reason.startswith("int8 tensors") and "float" in verdicts[-1].suggestion
    assert delegated.by_xnnpack(path) == (frozenset(range(5)), 1)


def test_summary_counts_macs_and_parts(tmp_path: Path) -> None:
    graph = tflite.graph(int8_net(tmp_path))
    (summary,) = opset.summary(graph, opset.judge(graph, "xnnpack"))
    assert (summary.accelerated, summary.fallback, summary.unsupported, summary.partitions) == (5, 1, 0, 1)
    assert summary.macs == 64 * 4 * 36 + 64 * 4 * 9 + 12 and summary.macs_share == 1.0


@pytest.mark.parametrize(("kind", "version"), [("ADD", 6), ("FULLY_CONNECTED", 14), ("GATHER_ND", 6), ("HARD_SWISH", 1), ("SOFTMAX", 4)])
def test_registered_kernel_versions_are_the_runtime_s(kind: str, version: int) -> None:
    from ai_edge_litert.interpreter import Interpreter

    for tried, loads in ((version, True), (version + 1, False)):
        data = tflite_operators.unary(kind, "float32", version=tried)
        assert (verdict(data, "xnnpack").status != "unsupported") == loads
        if loads:
            Interpreter(model_content=data)
        else:
            with pytest.raises(ValueError, match="Didn't find op"):
                Interpreter(model_content=data)


def test_custom_and_flex_operators_are_unsupported_with_what_to_do() -> None:
    for kind, words in (("FlexMatrixInverse", "Flex library"), ("MyNms", "custom operator"), ("Convolution2DTransposeBias", "custom operator")):
        net = Net()
        x, y = net.tensor("x", (1, 4)), net.tensor("layer", (1, 4))
        net.add(kind, [x], [y], custom=True)
        found = verdict(net.pack([x], [y]), "nnapi", api_level=30)
        assert (found.status, found.name) == ("unsupported", "layer") and words in found.reason and found.suggestion


def test_operators_of_lowered_pools_are_named_for_nnapi() -> None:
    for kind in ("GATHER_ND", "BROADCAST_TO"):
        net = Net()
        x, y = net.tensor("x", (1, 4)), net.tensor("pool/cells", (1, 4))
        net.add(kind, [x, tflite_operators.integers(net, "i", [0, 1])], [y], version=2)
        found = verdict(net.pack([x], [y]), "nnapi", nnapi_feature_level=8)
        assert (found.status, found.name, found.reason) == ("fallback", "pool/cells", f"NNAPI does not have {kind}")
        assert found.suggestion


@pytest.mark.parametrize(("data", "first_level"), [
    (tflite_operators.binary("ADD", "float32", table="AddOptions"), 1),
    (tflite_operators.binary("SUB", "float32", table="SubOptions"), 2),
    (tflite_operators.unary("EXP", "float32"), 3),
    (tflite_operators.unary("ELU", "float32"), 4),
    (tflite_operators.convolution("CONV_2D", "float32"), 1),
    (tflite_operators.convolution("CONV_2D", "int8"), 3),
    (tflite_operators.convolution("CONV_2D", "int8", scale=[0.1, 0.2, 0.3, 0.4]), 3),
    (tflite_operators.unary("QUANTIZE", "float32", out_dtype="int8", table="QuantizeOptions"), 4),
    (tflite_operators.unary("MIRROR_PAD", "float32", out=(1, 6, 6, 4), extra=[[[0, 0], [1, 1], [1, 1], [0, 0]]], table="MirrorPadOptions"), 7),
    (tflite_operators.unary("RESIZE_BILINEAR", "float32", out=(1, 8, 8, 4), extra=[[8, 8]], table="ResizeBilinearOptions", halfPixelCenters=True), 4),
    (tflite_operators.unary("GELU", "float32"), 99),
    (tflite_operators.unary("COS", "float32"), 99),
])  # fmt: skip
def test_nnapi_by_feature_level(data: bytes, first_level: int) -> None:
    for level in range(1, 9):
        assert (verdict(data, "nnapi", nnapi_feature_level=level).status == "accelerated") == (level >= first_level)


def test_nnapi_wants_exact_operator_versions() -> None:
    old, new = (tflite_operators.unary("SOFTMAX", "float32", version=v, table="SoftmaxOptions", beta=1.0) for v in (1, 2))
    assert verdict(new, "nnapi", api_level=30).status == "accelerated"
    found = verdict(old, "nnapi", api_level=30)
    assert (found.status, found.reason) == ("fallback", "version 1, and NNAPI takes version 2 only")


def test_api_levels_above_31_promise_feature_level_5_only() -> None:
    data = tflite_operators.unary("MIRROR_PAD", "float32", out=(1, 6, 6, 4), extra=[[[0, 0], [1, 1], [1, 1], [0, 0]]], table="MirrorPadOptions")
    assert "the target promises 5" in verdict(data, "nnapi", api_level=35).reason
    assert "the target promises 4" in verdict(data, "nnapi", api_level=30).reason


def test_reasons_on_quantization_parameters() -> None:
    pool = {"table": "Pool2DOptions", "strideW": 3, "strideH": 3, "filterWidth": 2, "filterHeight": 2}
    cases = {
        "scale": tflite_operators.binary("ADD", "int8", scales=(0.00001, 0.05, 0.05), version=2, table="AddOptions"),
        "axis": tflite_operators.convolution("CONV_2D", "int8", scale=[0.1, 0.2, 0.3, 0.4], axis=3),
        "int16": tflite_operators.convolution("CONV_2D", "int16"),
        "constant": tflite_operators.convolution("CONV_2D", "float32", constant=False),
        "TANH": tflite_operators.convolution("CONV_2D", "float32", fused="TANH"),
        "inputs": tflite_operators.joined("int8", 6),
        "stride": tflite_operators.unary("MAX_POOL_2D", "int8", out=(1, 2, 2, 4), version=2, **pool),
    }
    for word, data in cases.items():
        found = verdict(data, "xnnpack")
        assert found.status == "fallback" and word in found.reason, (word, found)


def chain(kinds: list[str]) -> Graph:
    net = Net()
    tensors = [net.tensor(f"t{i}", (1, 4)) for i in range(len(kinds) + 1)]
    for i, kind in enumerate(kinds):
        net.add(kind, [tensors[i]], [tensors[i + 1]])
    return graph_of(net.pack([tensors[0]], [tensors[-1]]))


def test_the_gpu_takes_its_largest_part_only() -> None:
    graph = chain(["ABS", "CEIL", "ABS", "EXP", "CEIL", "EXP"])
    verdicts = opset.judge(graph, "gpu")
    assert [v.status for v in verdicts] == ["fallback", "fallback", "accelerated", "accelerated", "fallback", "fallback"]
    assert "takes 1 part of the graph" in verdicts[0].reason
    assert opset.summary(graph, opset.judge(graph, "gpu", {"gpu_max_partitions": 3}))[0].partitions == 3


def test_parts_follow_dependencies_not_positions() -> None:
    def operator(index: int, reads: tuple[int, ...]) -> Operator:
        return Operator(index, "ABS", 1, f"o{index}", reads, (index + 10,))

    # two branches from one input; the operator that is not taken sits between them in execution order
    graph = Graph("tflite", (), (operator(0, (0,)), operator(1, (0,)), operator(2, (10,)), operator(3, (11, 12))), (0,), (13,), 0)
    assert partition.parts(graph, {0, 2, 3}) == ((0, 2), (3,))
    assert partition.parts(graph, {0, 1, 2, 3}) == ((0, 1, 2, 3),)
    assert partition.beyond(graph, {0, 2, 3}, 1) == frozenset({3})


def test_check_judges_every_delegate_of_the_profile() -> None:
    profile = target.load("android-arm64-gpu")
    graph = chain(["ABS", "CEIL"])
    found = opset.check(graph, profile)
    assert [v.delegate for v in found] == [d for d in profile.delegates for _ in graph.operators]


def test_an_unknown_delegate_offers_the_close_match() -> None:
    with pytest.raises(UsageError, match="no operator table") as caught:
        opset.judge(chain(["ABS"]), "xnpack")
    assert caught.value.hint == "did you mean xnnpack?"


@pytest.mark.parametrize("delegate", [*DELEGATES, "litert_cpu"])
def test_tables_name_their_sources(delegate: str) -> None:
    found = table.load(delegate)
    assert found.sources and all(s.get("repo") or s.get("package") or s.get("site") for s in found.sources) and len(found.ops) > 50


def test_all_delegates_have_an_answer_for_every_case() -> None:
    for _, data in tflite_operators.cases():
        for delegate in DELEGATES:
            assert verdict(data, delegate, nnapi_feature_level=4).status in ("accelerated", "fallback", "unsupported")


@pytest.mark.slow
@pytest.mark.parametrize("recipe_name", ["dynamic_wi8_afp32", "weight_only_wi8_afp32", "static_wi8_ai8", "static_wi8_ai16"])
@pytest.mark.parametrize("name", ["face-detection-short-range", "selfie-segmentation"])
def test_xnnpack_verdicts_are_what_the_runtime_does_on_quantized_models(tmp_path: Path, name: str, recipe_name: str) -> None:
    from ai_edge_quantizer import quantizer, recipe

    source = tflite.to_float(fetch.path(name), tmp_path / "float.tflite")
    job = quantizer.Quantizer(str(source), getattr(recipe, recipe_name)())
    random = np.random.RandomState(0)
    samples = [{s.name: random.rand(*s.shape).astype(np.float32) for s in tflite.open(str(source), {}).signature.inputs} for _ in range(2)]
    ranges = job.calibrate({"serving_default": samples}) if "static" in recipe_name else None
    job.quantize(ranges).export_model(str(tmp_path / "q.tflite"))
    graph = tflite.graph(tmp_path / "q.tflite")
    verdicts = opset.judge(graph, "xnnpack")
    real, nodes = delegated.by_xnnpack(tmp_path / "q.tflite")
    assert frozenset(v.operator for v in verdicts if v.status == "accelerated") == real
    assert opset.summary(graph, verdicts)[0].partitions == nodes
    kind = "int8" if recipe_name.endswith("ai8") else "int16-activations" if recipe_name.endswith("ai16") else "quantized-weights"
    assert tflite.traits(tmp_path / "q.tflite") == {kind}
