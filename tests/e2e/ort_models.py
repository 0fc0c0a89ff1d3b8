"""PyTorch layers whose exports went wrong in the field, as small models with an example input."""

from __future__ import annotations

from typing import Any


def _model(shape: tuple[int, ...], build: Any) -> tuple[Any, tuple[Any, ...]]:
    import torch

    torch.manual_seed(0)
    return build(torch.nn).eval(), (torch.zeros(shape),)


def output_padding() -> Any:
    """A transposed convolution with output padding, as decoders have it."""
    return _model((1, 3, 16, 16), lambda nn: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 3, 2, 1, output_padding=1)))


def uneven_pool() -> Any:
    """An adaptive pool whose windows differ in size, behind an average that leaves padding out of the count."""
    return _model((1, 3, 8, 8), lambda nn: nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.AdaptiveAvgPool2d(3)))


def recurrent() -> Any:
    """A GRU over ten steps; the output sequence."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = torch.nn.GRU(4, 8, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.gru(x)[0]

    return _model((1, 10, 4), lambda nn: Net())


def bilinear() -> Any:
    """Bilinear upsampling both ways."""
    return _model((1, 2, 5, 7), lambda nn: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Upsample(scale_factor=2, mode="bilinear",
                                                                                                                 align_corners=True)))  # fmt: skip


def slopes() -> Any:
    """PReLU with a slope a channel, where height and width equal the channels."""
    import torch

    model, example = _model((1, 4, 4, 4), lambda nn: nn.PReLU(4))
    model.weight.data = torch.tensor([0.1, -0.5, 2.0, 0.7])
    return model, example


def unshuffled() -> Any:
    """Pixels into channels and back: reshapes through six dimensions."""
    return _model((1, 3, 8, 8), lambda nn: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 12, 1), nn.GELU(), nn.PixelShuffle(2)))


def normalized() -> Any:
    """Group, layer and instance normalization around a convolution."""
    return _model((1, 4, 8, 8), _normalizations)


def _normalizations(nn: Any) -> Any:
    first, last = (nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)), (nn.InstanceNorm2d(4, affine=True), nn.LayerNorm([4, 8, 8]))
    return nn.Sequential(*first, nn.Hardswish(), *last)
