from __future__ import annotations

import pytest

from edgekit import formats
from edgekit.errors import ConversionError, UsageError

pytest.importorskip("torch")

SOURCE = """
import torch

def net():
    return torch.nn.Linear(3, 2), torch.ones(1, 3)

def fails():
    raise RuntimeError("no weights")

def number():
    return 3
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "my_nets_for_edgekit.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p])
    return "my_nets_for_edgekit"


def test_a_function_of_the_working_directory_is_found(package):
    model = formats.open(f"{package}:net")
    assert (model.format, model.name, model.signature.inputs[0].name) == ("torch", "net", "input")
    assert model.examples["input"].tolist() == [[1, 1, 1]]


def test_what_is_wrong_with_the_reference_is_said(package):
    with pytest.raises(UsageError, match="has no function nett") as typo:
        formats.open(f"{package}:nett")
    assert typo.value.hint == "did you mean net?"
    with pytest.raises(UsageError, match="cannot import no_such_package"):
        formats.open("no_such_package:net")
    with pytest.raises(ConversionError, match="the function failed: RuntimeError: no weights"):
        formats.open(f"{package}:fails")
    with pytest.raises(ConversionError, match="returned a int"):
        formats.open(f"{package}:number")
