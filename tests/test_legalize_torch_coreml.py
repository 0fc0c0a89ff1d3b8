"""Rewrites for Core ML, each against PyTorch's own operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from edgekit.legalize import torch_coreml, torch_ops  # noqa: E402  # after the check that PyTorch is there

F = torch.nn.functional

PICTURE = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 4, 9, 10)).astype(np.float32))
VOLUME = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 4, 4, 6, 7)).astype(np.float32))
PLACES = torch.tensor([3, 0])
ROWS = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 5)).astype(np.float32))
SCATTERED = torch.tensor([[0, 2, 2, 0, 2], [4, 4, 4, 4, 4], [0, 1, 2, 3, 4], [1, 0, 1, 0, 1]])


def bags(mode: str) -> Callable[[Any], Any]:
    """Bags of one row, none, three and one."""
    return lambda x: F.embedding_bag(torch.tensor([3, 0, 0, 2, 1]), x, torch.tensor([0, 1, 1, 4]), mode=mode)


def cubics(padding: str, aligned: int) -> Callable[[Any], Any]:
    """Sampling the picture at places inside it, at its edges, and well beyond."""
    grid = torch.from_numpy(np.random.default_rng(3).uniform(-2.5, 2.5, size=(1, 6, 7, 2)).astype(np.float32))
    return lambda x: F.grid_sample(x, grid, mode="bicubic", padding_mode=padding, align_corners=bool(aligned))


class Call(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


CASES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "circular padding": (lambda x: F.pad(x, (2, 1, 0, 3), mode="circular"), PICTURE),
    "a circular convolution": (torch.nn.Conv2d(4, 5, 3, padding=2, padding_mode="circular"), PICTURE),
    "negative padding": (lambda x: F.pad(x, (-1, 2, 1, -2), value=3.0), PICTURE),
    "a divisor": (lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), PICTURE),
    "a divisor by the ceiling": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=4), PICTURE),
    "a divisor of volumes": (lambda x: F.avg_pool3d(x, 2, divisor_override=3), VOLUME),
    "a dilated pool": (lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2), PICTURE),
    "a dilated pool by the ceiling": (lambda x: F.max_pool2d(x, (2, 3), (3, 2), (1, 0), dilation=(3, 1), ceil_mode=True), PICTURE),
    "few indices": (lambda x: x[0].gather(1, torch.tensor([[[1, 0]], [[8, 2]]])), PICTURE),
    "places of all": (lambda x: (x.argmax(), x.argmin()), PICTURE),
    "an ellipsis": (lambda x: torch.einsum("...ij, jk -> k...i", x, x[0, 0].T), PICTURE),
    "an ellipsis of few axes": (lambda x: torch.einsum("...ij,...kj", x, x[0, 0]), PICTURE),
    "rows put in place": (lambda x: x.index_copy(2, PLACES, x[:, :, :2] * 2), PICTURE),
    "rows added": (lambda x: x.index_add(1, torch.tensor([2, 2, 0]), x[:, :3], alpha=0.5), PICTURE),
    "groups of volumes": (torch.nn.GroupNorm(2, 4), VOLUME),
    "kept statistics": (torch.nn.InstanceNorm2d(4, affine=True, track_running_stats=True), PICTURE),
    "root mean squares": (torch.nn.RMSNorm(10), PICTURE * 1e-3),
    "root mean squares of large values": (torch.nn.RMSNorm((9, 10), eps=1e-6), PICTURE * 300),
    "a low threshold": (lambda x: F.softplus(x * 10, beta=2, threshold=3), PICTURE),
    "a log of sigmoids": (lambda x: F.logsigmoid(x * 20), PICTURE),
    "shrinking": (lambda x: F.hardshrink(x, 0.4), PICTURE),
    "spread of all": (lambda x: (x.std(), x.var(), x.std(unbiased=False), x.var(correction=2)), PICTURE),
    "exact neighbors": (lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact"), PICTURE),
    "exact neighbors of a size": (lambda x: F.interpolate(x, size=(13, 4), mode="nearest-exact"), PICTURE),
    "output padding": (torch.nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), PICTURE),
    "output padding of volumes": (torch.nn.ConvTranspose3d(4, 2, 3, stride=2, padding=1, output_padding=1), VOLUME),
    "truth": (lambda x: (((x > 0) & (x < 1)) | (x < -1)) ^ ~(x > 2), PICTURE),
    "toward zero": (lambda x: (x * 3).trunc(), PICTURE),
    "multiples": (lambda x: torch.add(x, x, alpha=-2) + torch.sub(x, 3.0, alpha=0.5) + torch.rsub(x, 3.0, alpha=2), PICTURE),
    "a product more": (lambda x: torch.addcmul(x, x, x + 1, value=0.3), PICTURE),
    "a share of the way": (lambda x: torch.lerp(x, x * x, 0.2), PICTURE),
    "products": (lambda x: (x.prod()[None], x.prod(1), x.prod(-1, keepdim=True), x[:, :1].prod(1)), PICTURE),
    "the largest so far": (lambda x: (*x.cummax(2), *x.round().cummin(-1)), PICTURE),
    "bags": (bags("sum"), ROWS),
    "bags of means": (bags("mean"), ROWS),
    "bags of the largest": (bags("max"), ROWS),
    "bags by weights": (lambda x: F.embedding_bag(PLACES.repeat(3).reshape(2, 3), x, mode="sum", per_sample_weights=x[:2, :3]), ROWS),
    "bags and padding": (lambda x: F.embedding_bag(torch.tensor([3, 0, 0, 2]), x, torch.tensor([0, 1, 3]), mode="mean", padding_idx=0), ROWS),
    "bags with their end": (lambda x: F.embedding_bag(torch.tensor([3, 0, 2]), x, torch.tensor([0, 2, 3]), include_last_offset=True), ROWS),
    "the sum of scattered alone": (lambda x: x.scatter_reduce(1, SCATTERED, x * 2, "sum", include_self=False), ROWS),
    "the product of scattered": (lambda x: x.scatter_reduce(1, SCATTERED, x * 2, "prod", include_self=False), ROWS),
    "the mean of scattered": (lambda x: x.scatter_reduce(1, SCATTERED, x * 2, "mean"), ROWS),
    "the mean of scattered alone": (lambda x: x.scatter_reduce(1, SCATTERED, x * 2, "mean", include_self=False), ROWS),
    "the largest of scattered": (lambda x: x.scatter_reduce(1, SCATTERED, x * 2, "amax", include_self=False), ROWS),
    "the smallest of part": (lambda x: x.scatter_reduce(1, SCATTERED[:, :2], x * 2, "amin"), ROWS),
    **{f"cubics, {padding}, {aligned}": (cubics(padding, aligned), PICTURE) for padding in ("zeros", "border", "reflection") for aligned in (0, 1)},
    "vectors": (lambda x: (x @ x[0, 0, 0], x[0, 0, :, 0] @ x, x[0, 0, 0] @ x[0, 0, 1]), PICTURE),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rewrite_computes_what_pytorch_does(name: str) -> None:
    function, x = CASES[name]
    torch.manual_seed(0)
    program = torch.export.export(Call(function).eval(), (x,))
    with torch.no_grad():
        module, notices = torch_ops.legalize(program, torch_coreml.RULES)
        found, wanted = module(x), program.module()(x)
    assert notices
    for got, right in zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]:
        assert got.dtype == right.dtype
        torch.testing.assert_close(got, right, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("function", [
    lambda x: F.pad(x, (2, 1)),
    lambda x: F.pad(x, (2, 1, 1, 1), mode="reflect"),
    lambda x: F.avg_pool2d(x, 3),
    lambda x: x + 2 * x,
    lambda x: x.argmax(1) & 3,
    lambda x: torch.einsum("bchw,bcvw->bchv", x, x),
    lambda x: F.softplus(x, beta=2),
    lambda x: x.scatter_reduce(3, x.argsort(3), x, "sum"),
    lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1)),
])  # fmt: skip
def test_what_core_ml_takes_is_left(function: Callable[[Any], Any]) -> None:
    assert not torch_ops.applies(torch.export.export(Call(function), (PICTURE,)), torch_coreml.RULES)
