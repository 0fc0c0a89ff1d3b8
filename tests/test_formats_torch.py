from __future__ import annotations

import copy
import dataclasses
import io
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from edgekit import formats
from edgekit.errors import ConversionError, UsageError
from edgekit.formats import _source
from edgekit.tensors import TensorSpec

torch = pytest.importorskip("torch")
from edgekit.formats import torch as torch_format  # noqa: E402  # after the check that PyTorch is there


class Scores(NamedTuple):
    boxes: torch.Tensor
    scores: torch.Tensor


class Detector(torch.nn.Module):
    """Two outputs of one shape, in an order that is not the alphabet's."""

    def __init__(self, as_tuple: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.as_tuple = torch.nn.Conv2d(3, 4, 3), as_tuple

    def forward(self, image, gain):
        found = self.features(image)
        return Scores(found * gain, found) if self.as_tuple else {"zeta": found * gain, "alpha": found}


class DynamicHeight(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = torch.nn.Conv2d(1, 2, 3)

    def forward(self, image):
        return self.conv(image).flatten(1).mean(1)


class Branches(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def _norm_net() -> torch.nn.Sequential:
    torch.manual_seed(5)
    body = [torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Dropout(0.5)]
    net = torch.nn.Sequential(*body, torch.nn.Conv2d(8, 4, 1))
    with torch.no_grad():
        net[1].running_var.copy_(torch.logspace(-1, 1, 8))
    return net


def test_a_module_with_examples_keeps_names_order_layout_and_values():
    examples = (torch.randn(1, 3, 8, 8), torch.tensor([2.0]))
    module = Detector().eval()
    model = torch_format.from_module(module, examples, {}, "detector")
    assert [(s.name, s.shape, s.layout) for s in model.signature.inputs] == [("image", (1, 3, 8, 8), "NCHW"), ("gain", (1,), "")]
    assert [s.name for s in model.signature.outputs] == ["zeta", "alpha"]
    outputs = formats.session(model).run(model.examples)
    for name, right in module(*examples).items():
        np.testing.assert_allclose(outputs[name], right.detach().numpy(), rtol=1e-6)


def test_named_tuples_name_the_outputs_and_tuples_number_them():
    examples = (torch.randn(1, 3, 8, 8), torch.tensor([2.0]))
    assert [s.name for s in torch_format.from_module(Detector(as_tuple=True), examples, {}, "d").signature.outputs] == ["boxes", "scores"]
    lstm = torch_format.from_module(torch.nn.GRU(4, 8), torch.zeros(5, 1, 4), {}, "gru")
    assert [s.name for s in lstm.signature.outputs] == ["output_0", "output_1"]


def test_the_digest_is_of_graph_and_weights():
    one, same = (torch_format.from_module(DynamicHeight(), torch.zeros(1, 1, 8, 8), {}, "net").digest for _ in range(2))
    changed = DynamicHeight()
    with torch.no_grad():
        changed.conv.bias += 1
    assert one == same != torch_format.from_module(changed, torch.zeros(1, 1, 8, 8), {}, "net").digest


@pytest.mark.parametrize("height", [8, 20])
def test_a_size_given_by_the_user_is_not_baked_wrongly(height):
    module = DynamicHeight().eval()
    model = torch_format.from_module(module, None, {"image": (1, 1, height, 8)}, "net")
    image = np.random.RandomState(0).randn(1, 1, height, 8).astype(np.float32)
    np.testing.assert_allclose(formats.session(model).run({"image": image})["output_0"], module(torch.from_numpy(image)).detach().numpy(), rtol=1e-5)


def test_without_sizes_or_with_an_unknown_name_the_input_is_named():
    with pytest.raises(ConversionError, match="sizes of the inputs are unknown") as error:
        torch_format.from_module(DynamicHeight(), None, {}, "net")
    assert "--input image=" in error.value.hint
    with pytest.raises(UsageError, match="no input of that name") as wrong:
        torch_format.from_module(DynamicHeight(), None, {"imag": (1, 1, 8, 8)}, "net")
    assert "image" in wrong.value.hint


def test_a_module_in_training_mode_is_switched_with_a_notice():
    net = _norm_net().train()
    image = torch.randn(1, 3, 8, 8)
    model = torch_format.from_module(net, image, {}, "net")
    assert "training mode (1 and 1 more)" in model.notices[0]
    np.testing.assert_allclose(formats.session(model).run(model.examples)["output_0"], net.eval()(image).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert torch_format.from_module(DynamicHeight().train(), torch.zeros(1, 1, 8, 8), {}, "net").notices == ()


@pytest.mark.parametrize("tracked", [True, False])
def test_training_mode_of_an_instance_norm_is_told_where_it_matters(tracked):
    net = torch.nn.Sequential(torch.nn.InstanceNorm2d(3, track_running_stats=tracked)).train()
    model = torch_format.from_module(net, torch.randn(1, 3, 8, 8), {}, "net")
    assert bool(model.notices) == tracked


class Weighted(torch.nn.Module):
    def forward(self, *images):
        return images[0] * 2 + images[1] * 3


def test_one_tensor_given_for_two_inputs_is_not_taken_for_one_input():
    same = torch.ones(1, 2)
    model = torch_format.from_module(Weighted(), (same, same), {}, "net")
    assert [spec.name for spec in model.signature.inputs] == ["images_0", "images_1"]
    found = formats.session(model).run({"images_0": np.full((1, 2), 5, np.float32), "images_1": np.full((1, 2), 7, np.float32)})
    np.testing.assert_array_equal(found["output_0"], [[31, 31]])


@pytest.mark.parametrize("wrap", [torch.compile, torch.nn.DataParallel, lambda net: torch.jit.trace(net, torch.ones(1, 3, 8, 8))])
def test_wrapped_modules_are_taken_apart(wrap):
    net = _norm_net().eval()
    image = torch.randn(1, 3, 8, 8)
    model = torch_format.from_module(wrap(net), image, {}, "net")
    feeds = {model.signature.inputs[0].name: image.numpy()}
    np.testing.assert_allclose(formats.session(model).run(feeds)["output_0"], net(image).detach().numpy(), rtol=1e-5, atol=1e-6)


@dataclasses.dataclass
class Found:
    zeta: torch.Tensor
    alpha: torch.Tensor


class Finds(torch.nn.Module):
    def forward(self, image):
        return Found(image + 1, image - 1)


def test_a_data_class_names_the_outputs():
    model = torch_format.from_module(Finds(), torch.zeros(1, 2), {}, "net")
    assert [spec.name for spec in model.signature.outputs] == ["zeta", "alpha"]


class Counter(torch.nn.Module):
    def __init__(self, read: bool) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 2))
        self.read = read

    def forward(self, image):
        self.total += image
        return self.total * 2 if self.read else image * 2


def test_state_between_calls_is_refused_where_outputs_depend_on_it():
    with pytest.raises(ConversionError, match="keeps state between calls: the buffer total"):
        torch_format.from_module(Counter(read=True), torch.ones(1, 2), {}, "net")
    model = torch_format.from_module(Counter(read=False), torch.ones(1, 2), {}, "net")
    assert formats.session(model).run(model.examples)["output_0"].tolist() == [[2, 2]]


class Scalar(torch.nn.Module):
    def forward(self, level):
        return level * 2


def test_a_scalar_stays_one():
    model = torch_format.from_module(Scalar(), torch.tensor(1.5), {}, "net")
    assert model.signature.outputs[0].shape == ()
    assert formats.session(model).run({"level": np.array(1.5, np.float32)})["output_0"].shape == ()


def test_bfloat16_is_widened_or_refused():
    net = torch.nn.Linear(4, 3).bfloat16()
    model = torch_format.from_module(net, torch.ones(1, 4).bfloat16(), {}, "net")
    assert model.signature.inputs[0].dtype == "float32"
    assert "bfloat16" in model.notices[0]
    with pytest.raises(ConversionError, match="bfloat16, which no runtime"):
        torch_format.from_module(Casts(), torch.ones(1, 4), {}, "net")


class Casts(torch.nn.Module):
    def forward(self, image):
        return (image.bfloat16() * 2).float()


def test_a_program_exported_in_training_mode_is_refused_by_layer(tmp_path):
    torch.export.save(torch.export.export(_norm_net().train(), (torch.randn(1, 3, 8, 8),)), tmp_path / "net.pt2")
    with pytest.raises(ConversionError, match="training mode: aten::batch_norm in layer 1") as error:
        formats.open(str(tmp_path / "net.pt2"))
    assert "eval()" in error.value.hint


def test_control_flow_on_values_is_refused():
    with pytest.raises(ConversionError, match="control flow or a shape depends on the values"):
        torch_format.from_module(Branches(), torch.ones(3), {}, "branches")


def test_an_exported_program_with_a_dynamic_height_needs_its_size(tmp_path):
    module = DynamicHeight().eval()
    shapes = {"image": {2: torch.export.Dim("height", min=4, max=64)}}
    torch.export.save(torch.export.export(module, (torch.zeros(1, 1, 16, 8),), dynamic_shapes=shapes), tmp_path / "net.pt2")
    with pytest.raises(ConversionError, match=r"input image \[1, 1, \?, 8\]: dimension 2 is dynamic") as error:
        formats.open(str(tmp_path / "net.pt2"))
    assert error.value.hint == "give every size: --input image=1x1xNx8"
    for height in (8, 20):
        model = formats.open(str(tmp_path / "net.pt2"), {"image": (1, 1, height, 8)})
        assert model.notices == (f"input image: dimension 2 was dynamic and is fixed to {height}",)
        image = np.random.RandomState(1).randn(1, 1, height, 8).astype(np.float32)
        right = module(torch.from_numpy(image)).detach().numpy()
        np.testing.assert_allclose(formats.session(model).run({"image": image})["output_0"], right, rtol=1e-5)


@pytest.mark.parametrize("kind", ["traced", "scripted"])
@pytest.mark.filterwarnings("ignore")
def test_torchscript_becomes_the_same_program(tmp_path, kind):
    net, image = _norm_net().eval(), torch.randn(1, 3, 9, 9)
    script = torch.jit.trace(net, torch.randn(1, 3, 8, 8)) if kind == "traced" else torch.jit.script(net)
    script.save(tmp_path / "net.pt")
    model = formats.open(str(tmp_path / "net.pt"), {"input": (1, 3, 9, 9)})
    assert [s.name for s in model.signature.inputs] == ["input"]
    np.testing.assert_allclose(formats.session(model).run({"input": image.numpy()})["output_0"], net(image).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_without_sizes_names_the_input(tmp_path):
    torch.jit.script(_norm_net().eval()).save(tmp_path / "net.pt")
    with pytest.raises(ConversionError, match="input input is unknown"):
        formats.open(str(tmp_path / "net.pt"))


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_pickles_are_refused_and_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weights": torch.zeros(2), "code": Bomb()}, tmp_path / "state.pt")
    with pytest.raises(ConversionError, match="does not run pickled code") as error:
        formats.open(str(tmp_path / "state.pt"))
    assert "package.module:function" in error.value.hint
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("place", ["data/sample_inputs/model.pt", "data/constants/opaque_obj_0"])
def test_a_pickle_inside_a_program_is_refused_and_never_run(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(DynamicHeight(), (torch.zeros(1, 1, 8, 8),)), tmp_path / "net.pt2")
    bomb = io.BytesIO()
    torch.save(Bomb(), bomb)
    with zipfile.ZipFile("net.pt2") as source, zipfile.ZipFile("bomb.pt2", "w") as sink:
        for name in {*source.namelist(), f"net/{place}"}:
            sink.writestr(name, bomb.getvalue() if name == f"net/{place}" else source.read(name))
    with pytest.raises(ConversionError, match=r"bomb\.pt2"):
        formats.open("bomb.pt2")
    assert not (tmp_path / "exploded").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_damaged_files_are_named(tmp_path):
    torch.export.save(torch.export.export(DynamicHeight(), (torch.zeros(1, 1, 8, 8),)), tmp_path / "net.pt2")
    (tmp_path / "short.pt2").write_bytes((tmp_path / "net.pt2").read_bytes()[:1000])
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme.txt", "no model")
    for name in ("short.pt2", "other.pt"):
        with pytest.raises(ConversionError, match=name):
            formats.open(str(tmp_path / name))


def test_shapes_are_fixed_as_the_model_allows():
    free = (TensorSpec("x", (-1, 3, 4), "float32"),)
    fixed, notices = _source.fix_shapes(free, {})
    assert fixed[0].shape == (1, 3, 4)
    assert notices == ("input x: dimension 0 was dynamic and is fixed to 1",)
    with pytest.raises(UsageError, match="contradicts"):
        _source.fix_shapes(free, {"x": (1, 4, 4)})
    with pytest.raises(ConversionError, match="dimension 0 is dynamic"):
        _source.fix_shapes((TensorSpec("tokens", (-1,), "int64"),), {})


def test_of_what_is_no_model_it_is_told_what_it_is(tmp_path):
    net = _norm_net()
    torch.save({"epoch": 3, "model": net.state_dict()}, tmp_path / "weights.pt")
    torch.save(net, tmp_path / "module.pt")
    with pytest.raises(ConversionError, match="weights alone"):
        formats.open(str(tmp_path / "weights.pt"))
    with pytest.raises(ConversionError, match=r"a pickled module \(torch\.nn\.modules\.container\.Sequential\)"):
        formats.open(str(tmp_path / "module.pt"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["module", "script", "program"])
def test_half_precision_is_widened_exactly(tmp_path, kind):
    net = _norm_net().eval().half()
    image = torch.randn(1, 3, 8, 8)
    right = copy.deepcopy(net).float()(image).detach().numpy()
    if kind == "module":
        model = torch_format.from_module(net, image.half(), {}, "net")
    elif kind == "script":
        torch.jit.script(net).save(tmp_path / "net.pt")
        model = formats.open(str(tmp_path / "net.pt"), {"input": (1, 3, 8, 8)})
    else:
        torch.export.save(torch.export.export(net, (image.half(),)), tmp_path / "net.pt2")
        model = formats.open(str(tmp_path / "net.pt2"))
    assert [s.dtype for s in (*model.signature.inputs, *model.signature.outputs)] == ["float32", "float32"]
    assert "float16" in " ".join(model.notices)
    np.testing.assert_allclose(formats.session(model).run({"input": image.numpy()})["output_0"], right, rtol=1e-5, atol=1e-5)
