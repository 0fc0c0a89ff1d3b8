"""TorchScript as an exported program: which arguments are inputs, of which types, and whether both compute the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.errors import ConversionError
from edgekit.formats._quiet import quiet
from edgekit.formats._torch_program import flat_outputs

_ANOTHER_WAY = "give package.module:function that builds the original module"
_MOST_UNKNOWN = 4


def inputs(script: Any, known: Sequence[str]) -> list[str]:
    """Names of the arguments that are inputs: the tensors; of those that may be left out, the ones in `known`."""
    arguments = list(script.forward.schema.arguments)[1:]
    return [a.name for a in arguments if "Tensor" in str(a.type) and (a.name in known or not a.has_default_value())]


def settled_types(script: Any, flat: Mapping[str, Any], free: Sequence[str], name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """`flat` in types the script runs with, and a notice for each input taken as int64: TorchScript states none.

    The inputs `free` may change from floats to int64, as few as need to. Raises `ConversionError` when it runs with none.
    """
    import torch

    first: Exception | None = None
    for count in range(min(len(free), _MOST_UNKNOWN) + 1):
        for chosen in itertools.combinations(free, count):
            tried = {key: torch.zeros_like(value, dtype=torch.int64) if key in chosen else value for key, value in flat.items()}
            try:
                with torch.no_grad(), quiet():
                    script(**tried)
            except Exception as error:  # the model's own code runs
                first = first or error
                continue
            return tried, tuple(f"input {key}: taken as int64, as the model does not run on floats there" for key in chosen)
    raise ConversionError(f"{name}: the TorchScript module does not run on inputs of these shapes ({reason(first)})", _ANOTHER_WAY)


def of_inputs_alone(script: Any, made: Mapping[str, Any]) -> Any:
    """The script as one that takes the inputs `made` alone, where it has arguments that are left out; itself where it has none."""
    import torch

    if len(made) == len(script.forward.schema.arguments) - 1:
        return script

    class Called(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.inner = script

        def forward(self, *values: Any) -> Any:
            return self.inner(**dict(zip(made, values, strict=True)))

    with torch.no_grad(), quiet():
        return torch.jit.trace(Called(), tuple(made.values()), check_trace=False, strict=False)


def as_program(script: Any, flat: tuple[Any, ...], name: str) -> Any:
    """The exported program. Raises `ConversionError`."""
    from torch._export.converter import TS2EPConverter  # the only reader of TorchScript control flow and attributes that PyTorch has

    try:
        with quiet():
            return TS2EPConverter(script, flat).convert()
    except Exception as error:  # tracing runs the model's own code
        raise ConversionError(f"{name}: TorchScript that cannot be turned into a static graph ({reason(error)})", _ANOTHER_WAY) from error


def check_equal(script: Any, run: Callable[[Sequence[Any]], Sequence[Any]], flat: Sequence[Any], name: str) -> None:
    """Raise `ConversionError` where `run`, on numpy arrays, differs from the script: on `flat`, on its negative and on other sizes of value.

    A branch on values that was decided once for all shows on the others only.
    """
    import numpy as np
    import torch

    for factor in (1.0, -1.0, 0.0, 8.0):
        given = [value * factor if value.is_floating_point() else value for value in flat]
        with torch.no_grad():
            wanted = [tensor.numpy() for tensor in flat_outputs(script(*given))]
        for place, (got, right) in enumerate(zip(run([value.numpy() for value in given]), wanted, strict=True)):
            worst = float(np.abs(got.astype(np.float64) - right).max(initial=0)) if got.shape == right.shape else float("inf")
            if not (worst <= 1e-4 * max(1.0, float(np.abs(right).max(initial=0))) or np.array_equal(got, right, equal_nan=True)):
                branches = any(node.kind() in ("prim::If", "prim::Loop") for node in script.inlined_graph.nodes())
                why = ": it branches or loops on values" if branches else ""
                raise ConversionError(
                    f"{name}: the TorchScript module and its static graph differ by {worst:.3g} in output {place}{why}", _ANOTHER_WAY
                )


def reason(error: Exception | None) -> str:
    """What PyTorch says, without the interpreter's stack around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if line.startswith(("RuntimeError:", "torch.jit.Error:"))), None)
    if lines and lines[0].startswith("The following operation failed"):
        told = told or lines[-1]
    return (told.partition(": ")[2] if told else lines[0] if lines else type(error).__name__)[:200]
