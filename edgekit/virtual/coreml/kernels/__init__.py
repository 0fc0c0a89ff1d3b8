"""The operators of an ML Program as functions over torch tensors, grouped as Apple's operator reference groups them.

A function's parameters are the operator's own, with its defaults. Floats come as float32, whatever the program states: the interpreter rounds the
result to the stated type. So a half-precision operator accumulates in float32 and rounds once, as Core ML's CPU unit does. These modules import torch
at their top because they are themselves imported only when a program is prepared.
Source of the semantics: Apple's MIL operator reference (coremltools documentation) for iOS 15 to iOS 18.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

GROUPS = (
    "elementwise",
    "activation",
    "linear",
    "conv",
    "pool",
    "norm",
    "reduce",
    "tensor",
    "shape",
    "scatter",
    "resize",
    "sample",
    "recurrent",
    "compressed",
    "lists",
    "detect",
)

Kernel = Callable[..., Any]


def load() -> dict[str, Kernel]:
    """Every operator by name."""
    table: dict[str, Kernel] = {}
    for group in GROUPS:
        table.update(importlib.import_module(f"edgekit.virtual.coreml.kernels.{group}").OPERATORS)
    return table
