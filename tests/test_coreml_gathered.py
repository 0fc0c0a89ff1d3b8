"""Operators that gather, scatter and reduce, through coremltools into a package: the interpreter against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import converters, formats, hops
from edgekit.backends import coreml
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.formats import torch as torch_format
from tests.test_legalize_torch_coreml import CASES, PICTURE, ROWS, SCATTERED, Call

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("coremltools")

NAMES = [name for name in CASES if any(word in name for word in ("products", "so far", "bags", "scattered", "of part", "cubics"))]
PLAIN: dict[str, tuple[Callable[[Any], Any], Any]] = {
    f"{mode} as it is": (lambda x, mode=mode: x.scatter_reduce(1, SCATTERED, x * 2, mode), ROWS) for mode in ("sum", "prod", "amax", "amin")
}


def converted(function: Callable[[Any], Any], x: Any, folder: Path) -> tuple[Model, Model]:
    source = torch_format.from_module(Call(function).eval(), (x,), {}, "call")
    (hop,) = converters.route(source.format, coreml.accepts)
    made: Model = hop.convert(source, folder)
    return source, made


@pytest.mark.parametrize("name", [*NAMES, *PLAIN])
def test_a_package_computes_what_pytorch_does(name: str, tmp_path: Path) -> None:
    function, x = (CASES | PLAIN)[name]
    source, made = converted(function, x, tmp_path)
    sample = {source.signature.inputs[0].name: np.asarray(x)}
    (wanted,), (got,) = (hops.run(formats.session(model), model.signature, [sample]) for model in (source, made))
    for output, array in wanted.items():
        np.testing.assert_allclose(got[output], array, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(array).max())))


@pytest.mark.parametrize(("function", "named"), [
    (lambda x: (x > 0).long().prod(1), "prod"),
    (lambda x: torch.nn.functional.grid_sample(x[:, :, None], x.new_zeros(1, 1, 2, 2, 3), mode="bilinear"), "grid_sampler"),
])  # fmt: skip
def test_what_has_no_counterpart_is_named(function: Callable[[Any], Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=named):
        converted(function, PICTURE, tmp_path)
