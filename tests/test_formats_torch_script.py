"""TorchScript files: what their inputs are, and branches on values."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit import formats
from edgekit.errors import ConversionError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch calls TorchScript deprecated at every use


class Scaled(torch.nn.Module):
    def forward(self, x, scale: float = 2.0, shift: torch.Tensor | None = None):
        return x * scale if shift is None else x * scale + shift


def test_arguments_of_torchscript_that_may_be_left_out_are_no_inputs(tmp_path):
    torch.jit.script(Scaled()).save(tmp_path / "scaled.pt")
    model = formats.open(str(tmp_path / "scaled.pt"), {"x": (1, 4)})
    assert [s.name for s in model.signature.inputs] == ["x"]
    np.testing.assert_array_equal(formats.session(model).run({"x": np.ones((1, 4), np.float32)})["output_0"], np.full((1, 4), 2, np.float32))


class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(7, 3)

    def forward(self, gain, ids):
        return self.table(ids) * gain


def test_an_input_of_torchscript_that_floats_do_not_fit_is_an_integer(tmp_path):
    net = Embedded().eval()
    torch.jit.trace(net, (torch.ones(1), torch.zeros(1, 5, dtype=torch.long))).save(tmp_path / "net.pt")
    model = formats.open(str(tmp_path / "net.pt"), {"gain": (1,), "ids": (1, 5)})
    assert [s.dtype for s in model.signature.inputs] == ["float32", "int64"]
    assert any("ids: taken as int64" in notice for notice in model.notices)
    ids = np.array([[0, 3, 6, 1, 1]])
    found = formats.session(model).run({"gain": np.full(1, 2, np.float32), "ids": ids})["output_0"]
    np.testing.assert_allclose(found, 2 * net.table.weight.detach().numpy()[ids], rtol=1e-6)


class Branching(torch.nn.Module):
    def forward(self, x):
        if bool((x.sum() > 0).item()):
            return x * 2
        return x - 1


def test_a_branch_on_values_in_torchscript_is_never_decided_once_for_all(tmp_path):
    torch.jit.script(Branching()).save(tmp_path / "script.pt")
    with pytest.raises(ConversionError, match=r"branches or loops on values|static graph"):
        formats.open(str(tmp_path / "script.pt"), {"x": (1, 4)})
