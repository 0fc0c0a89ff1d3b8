"""The integer reference on random graphs against exact rational arithmetic: every shift rounds once, by its rule, and saturates."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.virtual.dpu import arithmetic, reader
from tests.dpu_models import Builder, exact

ACTIVATIONS = ("", "Relu", "Clip", "LeakyRelu")
OPERATORS = ("conv", "depthwise", "add", "sub", "mul", "concat", "max", "average", "double")


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor under its dequantized name: its position, and exact real values [channels, height, width] of an image."""

    name: str
    at: int
    exact: Any


class Graph:
    """Builds a QDQ model and computes it in fractions beside."""

    def __init__(self, data: Any) -> None:
        self.data, self.build = data, Builder()
        self.rng = np.random.RandomState(data.draw(st.integers(0, 2**31)))
        self.rounding = data.draw(st.sampled_from(arithmetic.ROUNDINGS))
        self.fed: dict[str, Any] = {}
        self.values = [self.input("x", (2, 5, 5)), self.input("z", (2, 5, 5))]

    def draw(self, low: int, high: int) -> int:
        return int(self.data.draw(st.integers(low, high)))

    def input(self, name: str, shape: tuple[int, ...]) -> Value:
        at = self.draw(1, 6)
        stored = self.rng.randint(-128, 128, shape)
        self.fed[name] = (stored * 2.0**-at).astype(np.float32)[None]
        return Value(self.build.input(name, (1, *shape), at), at, fractions(stored, at))

    def stored(self, name: str, real: Any, around: int) -> Value:
        """The tensor that a shift to a drawn position leaves."""
        at = around - self.draw(-2, 3)
        step = Fraction(2) ** at
        rounded = np.vectorize(lambda v: Fraction(max(-128, min(127, exact(v * step, self.rounding)))) / step, otypes=[object])
        return Value(self.build.quantized(name, at), at, rounded(real))

    def constant(self, name: str, shape: tuple[int, ...], at: int) -> tuple[str, Any]:
        array = self.rng.randint(-128, 128, shape)
        return self.build.weight(name, array, at), fractions(array, at)

    def step(self, number: int) -> None:
        kind = self.data.draw(st.sampled_from(OPERATORS))
        source = self.values[self.draw(0, len(self.values) - 1)]
        made = getattr(self, kind)(f"y{number}", source)
        if made is not None:
            self.values.append(made)

    def conv(self, name: str, source: Value) -> Value | None:
        return self._conv(name, source, groups=1)

    def depthwise(self, name: str, source: Value) -> Value | None:
        return self._conv(name, source, groups=len(source.exact))

    def _conv(self, name: str, source: Value, groups: int) -> Value | None:
        channels, kernel, stride, pad = len(source.exact), self.draw(1, 3), self.draw(1, 2), self.draw(0, 1)
        if min(source.exact.shape[1:]) + 2 * pad < kernel:
            return None
        outputs, around = channels if groups > 1 else self.draw(1, 3), self.draw(5, 9)
        weight, w = self.constant(f"{name}w", (outputs, channels // groups, kernel, kernel), around)
        bias, b = self.constant(f"{name}b", (outputs,), source.at + around + self.draw(-8, 2))
        padded = np.pad(source.exact, ((0, 0), (pad, pad), (pad, pad)), constant_values=Fraction(0))
        height, width = ((size - kernel) // stride + 1 for size in padded.shape[1:])
        total = np.zeros((outputs, height, width), object) + b[:, None, None]
        for o in range(outputs):
            for c in range(channels // groups):
                plane = padded[o if groups > 1 else c]
                for i in range(kernel):
                    for j in range(kernel):
                        total[o] += w[o, c, i, j] * plane[i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride]
        node = self.build.node("Conv", [source.name, weight, bias], name, group=groups, strides=[stride] * 2, pads=[pad] * 4)
        return self.activated(node, total, source.at + 1)

    def activated(self, name: str, real: Any, around: int) -> Value:
        kind = self.data.draw(st.sampled_from(ACTIVATIONS))
        if kind == "Relu":
            return self.stored(self.build.node("Relu", [name], f"{name}r"), np.maximum(real, Fraction(0)), around)
        if kind == "Clip":
            ends = [self.build.constant(f"{name}{end}", np.float32(end)) for end in (0, 6)]
            return self.stored(self.build.node("Clip", [name, *ends], f"{name}r"), np.minimum(np.maximum(real, Fraction(0)), Fraction(6)), around)
        if kind == "LeakyRelu":
            leaky = np.where(real < 0, real * Fraction(26, 256), real)
            return self.stored(self.build.node("LeakyRelu", [name], f"{name}r", alpha=26 / 256), leaky, around)
        return self.stored(name, real, around)

    def _pair(self, source: Value) -> Value:
        same = [value for value in self.values if value.exact.shape == source.exact.shape]
        return same[self.draw(0, len(same) - 1)]

    def add(self, name: str, source: Value) -> Value:
        other = self._pair(source)
        return self.activated(self.build.node("Add", [source.name, other.name], name), source.exact + other.exact, source.at)

    def sub(self, name: str, source: Value) -> Value:
        other = self._pair(source)
        return self.stored(self.build.node("Sub", [source.name, other.name], name), source.exact - other.exact, source.at)

    def mul(self, name: str, source: Value) -> Value:
        other = self._pair(source)
        return self.stored(self.build.node("Mul", [source.name, other.name], name), source.exact * other.exact, source.at)

    def concat(self, name: str, source: Value) -> Value | None:
        parts = [source, *(value for value in self.values if value.exact.shape[1:] == source.exact.shape[1:])][:3]
        if sum(len(part.exact) for part in parts) > 8:
            return None
        joined = np.concatenate([part.exact for part in parts])
        return self.stored(self.build.node("Concat", [part.name for part in parts], name, axis=1), joined, source.at)

    def max(self, name: str, source: Value) -> Value | None:
        return self._pooled("MaxPool", name, source, lambda taps: np.maximum.reduce(taps))

    def average(self, name: str, source: Value) -> Value | None:
        return self._pooled("AveragePool", name, source, lambda taps: sum(taps) / Fraction(4))

    def _pooled(self, kind: str, name: str, source: Value, join: Any) -> Value | None:
        height, width = (size // 2 for size in source.exact.shape[1:])
        if not height or not width:
            return None
        taps = [source.exact[:, i : 2 * height : 2, j : 2 * width : 2] for i in (0, 1) for j in (0, 1)]
        return self.stored(self.build.node(kind, [source.name], name, kernel_shape=[2, 2], strides=[2, 2]), join(taps), source.at)

    def double(self, name: str, source: Value) -> Value | None:
        if source.exact.size > 200:
            return None
        scales = self.build.constant(f"{name}k", np.array([1, 1, 2, 2], np.float32))
        grid = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        node = self.build.node("Resize", [source.name, "", scales], name, **grid)
        return self.stored(node, source.exact.repeat(2, axis=1).repeat(2, axis=2), source.at)

    def gemm(self) -> Value:
        """The last tensor, flattened, through a dense layer."""
        last = self.values[-1]
        flat = self.stored(self.build.node("Flatten", [last.name], "flat"), last.exact.reshape(-1), last.at)
        weight, w = self.constant("g", (flat.exact.size, 3), 7)
        return self.stored(self.build.node("Gemm", [flat.name, weight], "out"), flat.exact @ w, last.at - 2)


def fractions(stored: Any, at: int) -> Any:
    return np.vectorize(lambda v: Fraction(int(v)) / Fraction(2) ** at, otypes=[object])(stored)


@settings(max_examples=25)
@given(st.data())
def test_random_graphs_equal_exact_rational_arithmetic(data: Any) -> None:
    graph = Graph(data)
    for number in range(graph.draw(2, 6)):
        graph.step(number)
    output = graph.gemm()
    got = reader.read(graph.build.model(output.name), graph.rounding).values(graph.fed)
    for value in [*graph.values[2:], output]:
        name = value.name.removesuffix("_dq") + "_q"
        assert got[name].ravel().tolist() == [int(v * Fraction(2) ** value.at) for v in value.exact.ravel()], name
