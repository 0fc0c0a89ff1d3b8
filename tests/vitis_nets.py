"""Small torch networks of the forms that reach an FPGA target, each with an example input; random weights of a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import nn

Net = tuple[Any, tuple[Any, ...]]

IMAGE = (1, 3, 16, 16)


class Function(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A function of submodules and an input, as a module."""

    def __init__(self, function: Callable[[Any, Any], Any], **modules: nn.Module) -> None:
        super().__init__()
        self._function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Any) -> Any:
        return self._function(self, x)


def of(function: Callable[[Any, Any], Any], **modules: nn.Module) -> Net:
    return Function(function, **modules).eval(), (torch.zeros(IMAGE),)


def chain(*modules: nn.Module) -> Net:
    return nn.Sequential(*modules).eval(), (torch.zeros(IMAGE),)


def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=options.pop("padding", kernel // 2), **options)


def _se(gate: Callable[[Any], Any]) -> Net:
    def run(s: Any, x: Any) -> Any:
        found = F.hardswish(s.a(x))
        return s.o(found * gate(s.e(torch.relu(s.r(F.adaptive_avg_pool2d(found, 1))))))

    return of(run, a=conv(3, 16), r=conv(16, 4, 1), e=conv(4, 16, 1), o=conv(16, 4))


def _three_scales(s: Any, x: Any) -> Any:
    a = F.relu(s.a(x))
    half = F.interpolate(F.relu(s.b(a)), scale_factor=2, mode="nearest")
    quarter = F.interpolate(F.relu(s.c(F.max_pool2d(a, 4))), scale_factor=4, mode="nearest")
    return s.o(torch.cat([a, half, quarter], 1))


def _boxes_and_scores(s: Any, x: Any) -> Any:
    found = F.relu(s.a(x))
    return torch.cat([torch.sigmoid(s.b(found)).flatten(2) * 640, torch.sigmoid(s.k(found) * 3 - 1).flatten(2)], 1)


def _raw_boxes_and_scores(s: Any, x: Any) -> Any:
    found = F.relu(s.a(x))
    return torch.cat([s.b(found) * 300, s.k(found)], 1)


def _sliced(s: Any, x: Any) -> Any:
    found = F.relu(s.a(x))
    return s.b(torch.cat([found[:, :, ::2, ::2], found[:, :, 1::2, 1::2]], 1))


def _two_outputs(s: Any, x: Any) -> Any:
    found = F.relu(s.a(x))
    return s.b(found), s.l(found.mean((2, 3)))


def _slopes() -> nn.PReLU:
    """One slope a channel."""
    made = nn.PReLU(8)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(0.05, 0.4, 8))
    return made


def _depthwise_ranges() -> Net:
    deep, plain = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False), nn.Conv2d(3, 4, 1)
    with torch.no_grad():
        scale = torch.tensor([0.01, 0.5, 30.0])
        deep.weight.mul_(scale[:, None, None, None])
        plain.weight.div_(scale[None, :, None, None])
    return chain(deep, plain)


NETS: dict[str, Callable[[], Net]] = {
    "leaky": lambda: chain(conv(3, 8), nn.LeakyReLU(0.1), conv(8, 8), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    "add-hard-swish": lambda: of(lambda s, x: s.c(F.hardswish(s.a(x) + s.b(x))), a=conv(3, 8), b=conv(3, 8, 1), c=conv(8, 4)),
    "squeeze-sigmoid": lambda: _se(torch.sigmoid),
    "squeeze-hard-sigmoid": lambda: _se(F.hardsigmoid),
    "three-scales": lambda: of(_three_scales, a=conv(3, 8), b=conv(8, 8, stride=2), c=conv(8, 8), o=conv(24, 4, 1)),
    "bilinear": lambda: of(lambda s, x: s.b(F.interpolate(F.relu(s.a(x)), scale_factor=2.0, mode="bilinear")), a=conv(3, 8), b=conv(8, 3)),
    "bilinear-corners": lambda: of(
        lambda s, x: s.b(F.interpolate(F.relu(s.a(x)), scale_factor=2.0, mode="bilinear", align_corners=True)), a=conv(3, 8), b=conv(8, 3)
    ),
    "nearest": lambda: of(lambda s, x: s.b(F.interpolate(F.relu(s.a(x)), scale_factor=2.0, mode="nearest")), a=conv(3, 8), b=conv(8, 3)),
    "transposed": lambda: chain(
        conv(3, 8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, stride=2)
    ),
    "dilated": lambda: chain(
        conv(3, 8), nn.ReLU(), conv(8, 8, padding=2, dilation=2), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 4, padding=4, dilation=4)
    ),
    "prelu": lambda: chain(conv(3, 8), _slopes(), conv(8, 8), nn.PReLU(), conv(8, 4)),
    "silu": lambda: chain(conv(3, 8), nn.SiLU(), conv(8, 8), nn.SiLU(), conv(8, 4)),
    "padded-means": lambda: chain(
        conv(3, 8), nn.ReLU(), nn.AvgPool2d(3, 2, padding=1), conv(8, 8), nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), conv(8, 4)
    ),
    "multiplier-2": lambda: chain(conv(3, 8), nn.ReLU(), conv(8, 16, groups=8), nn.ReLU6(), conv(16, 4, 1)),
    "dense-of-rows": lambda: of(lambda s, x: s.l(F.relu(s.a(x)).flatten(2).transpose(1, 2)), a=conv(3, 8, stride=2), l=nn.Linear(8, 6)),
    "group-norm": lambda: chain(conv(3, 8), nn.GroupNorm(2, 8), nn.ReLU(), conv(8, 8), nn.ReLU(), conv(8, 4)),
    "softmax": lambda: chain(conv(3, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.Softmax(1)),
    "reflected": lambda: of(lambda s, x: s.b(F.pad(F.relu(s.a(x)), (1, 1, 1, 1), mode="reflect")), a=conv(3, 8), b=conv(8, 4, padding=0)),
    "padded-by-half": lambda: of(lambda s, x: s.b(F.pad(F.relu(s.a(x)), (1, 1, 1, 1), value=0.5)), a=conv(3, 8), b=conv(8, 4, padding=0)),
    "sliced": lambda: of(_sliced, a=conv(3, 8), b=conv(16, 4)),
    "two-outputs": lambda: of(_two_outputs, a=conv(3, 8), b=conv(8, 4, 1), l=nn.Linear(8, 3)),
    "shuffled": lambda: of(lambda s, x: F.pixel_shuffle(s.b(F.relu(s.a(x))), 2), a=conv(3, 8), b=conv(8, 12)),
    "grouped": lambda: chain(conv(3, 8), nn.ReLU(), conv(8, 8, groups=2), nn.ReLU(), conv(8, 4)),
    "boxes-and-scores": lambda: of(_boxes_and_scores, a=conv(3, 16), b=conv(16, 4, 1), k=conv(16, 2, 1)),
    "raw-boxes-and-scores": lambda: of(_raw_boxes_and_scores, a=conv(3, 16), b=conv(16, 4, 1), k=conv(16, 2, 1)),
    "depthwise-ranges": _depthwise_ranges,
}


def make(name: str) -> Net:
    """One of the networks, the same every time."""
    torch.manual_seed(0)
    return NETS[name]()
