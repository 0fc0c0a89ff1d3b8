"""What opening a package that is damaged, newer or of another kind says, by the command that users type first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgekit import formats, opset
from edgekit.cli import main
from edgekit.errors import BundleError, EdgekitError
from edgekit.formats import mlprogram
from edgekit.virtual.coreml import package
from tests import coreml_packages as made
from tests.test_backend_coreml_taps import chain

SHAPE = (1, 4)
MODEL = Path("Data", "com.apple.CoreML", "model.mlmodel")
WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")


def one(kind: str, **options: object) -> bytes:
    body = made.block([made.operation(kind, "the_layer", {"x": "x"}, [made.named("y", "float32", SHAPE)])], ["y"])
    return made.model({"x": ("float32", SHAPE)}, {"y": "float32"}, body, **options)  # type: ignore[arg-type]  # version and opset


def network() -> bytes:
    described = made.message(1, made.feature("x", "float32", SHAPE)) + made.message(10, made.feature("y", "float32", SHAPE))
    return made.number(1, 4) + made.message(2, described) + made.message(500, b"")


def cut(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda folder: cut(chain(folder) / MODEL, -40), "model specification is damaged"),
    "no weights": (lambda folder: shutil.rmtree((chain(folder) / WEIGHTS).parent), "weight.bin is missing"),
    "short weights": (lambda folder: cut(chain(folder) / WEIGHTS, 150), "weight.bin is truncated"),
    "no manifest": (lambda folder: (chain(folder) / "Manifest.json").unlink(), "no Manifest.json"),
    "no specification": (lambda folder: (chain(folder) / MODEL).unlink(), "specification is missing"),
    "newer": (lambda folder: made.write(folder, one("relu", version=11, opset="CoreML9")), "version 11"),
    "neural network": (lambda folder: made.write(folder, network()), "a neural network, not an ML Program"),
    "a file": (lambda folder: folder.write_bytes(b"PK"), "is a file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_cannot_be_used_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    breaking, said = BROKEN[name]
    breaking(tmp_path / "net.mlpackage")
    for command in (["inspect"], ["package", "--target", "ios-coreml"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, str(tmp_path / "net.mlpackage")])
        told = capsys.readouterr()
        assert (ended.value.code, told.out) == (4, "") and told.err.startswith("error: ") and said in told.err
    if name != "neural network":
        with pytest.raises(BundleError) as caught:  # inside a bundle, the same is a corrupt bundle
            package.read(tmp_path / "net.mlpackage")
        assert caught.value.exit_code == 7


@pytest.mark.parametrize(("data", "said"), [(network(), "a neural network"), (one("relu"), "outside its package")], ids=["network", "program"])
def test_an_mlmodel_file_says_what_it_is(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "old.mlmodel").write_bytes(data)
    with pytest.raises(EdgekitError, match=said) as caught:
        formats.open(str(tmp_path / "old.mlmodel"))
    assert caught.value.exit_code == 4


def test_an_operator_that_core_ml_does_not_have_is_named(tmp_path: Path) -> None:
    opened = formats.open(str(made.write(tmp_path / "net.mlpackage", one("wonder"))))
    assert opened.notices == ("operator wonder (layer the_layer): Core ML has none of that name",)
    pytest.importorskip("torch")
    with pytest.raises(EdgekitError, match=r"wonder \(layer the_layer\)") as caught:
        formats.session(opened)
    assert caught.value.exit_code == 4


def test_an_operator_s_data_comes_before_its_weights(tmp_path: Path) -> None:
    """A package has its parameters in any order, a short bias is shown as an attribute: verdicts must not take the weights for data."""
    weight, bias = np.zeros((4, 3, 3, 3), np.float16), made.literal(np.zeros(4), "float16")
    operations = [
        made.operation("const", "w", {}, [made.named("w", "float16", weight.shape)], {"val": made.literal(weight, "float16")}),
        made.operation("conv", "c", {"bias": bias, "weight": "w", "x": "x"}, [made.named("y", "float16", (1, 4, 30, 40))]),
    ]
    data = made.model({"x": ("float16", (1, 3, 32, 42))}, {"y": "float16"}, made.block(operations, ["y"]))
    graph = mlprogram.graph(formats.open(str(made.write(tmp_path / "net.mlpackage", data))))
    assert [graph.tensors[index].name for index in graph.operators[0].inputs] == ["x", "w"]
    assert opset.judge(graph, "ane", {"ane_feature_level": 1})[0].status == "accelerated"


def test_a_recurrent_layer_s_products_are_counted(tmp_path: Path) -> None:
    weights = {"weight_ih": (16, 5), "weight_hh": (16, 4)}
    operations = [
        made.operation("const", key, {}, [made.named(key, "float32", shape)], {"val": made.literal(np.zeros(shape, np.float32))})
        for key, shape in weights.items()
    ]
    first = made.operation("const", "h", {}, [made.named("h", "float32", (2, 4))], {"val": made.literal(np.zeros((2, 4), np.float32))})
    given = {"x": "x", "initial_h": "h", "initial_c": "h", **{key: key for key in weights}}
    results = [made.named(name, "float32", shape) for name, shape in (("y", (7, 2, 4)), ("last_h", (2, 4)), ("last_c", (2, 4)))]
    body = made.block([*operations, first, made.operation("lstm", "cell", given, results)], ["y"])
    data = made.model({"x": ("float32", (7, 2, 5))}, {"y": "float32"}, body)
    graph = mlprogram.graph(formats.open(str(made.write(tmp_path / "net.mlpackage", data))))
    assert graph.macs == 7 * 2 * (16 * 5 + 16 * 4)
