"""A package ready to run, with arrays in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.errors import RunnerError
from edgekit.tensors import Array, Arrays
from edgekit.virtual.coreml import interpreter, spec
from edgekit.virtual.coreml.constants import rounded
from edgekit.virtual.coreml.package import Package
from edgekit.virtual.coreml.plan import Plan, prepare


class Session:
    """Runs one package. Constants are decoded once, when it is made; `tap` sees every operator's result.

    States (iOS 18) start at zero and live as long as the session; `reset` clears them. `plan` is one of the same interface to run instead.
    """

    def __init__(self, package: Package, tap: interpreter.Tap | None = None, plan: Plan | None = None) -> None:
        self._program = package.program
        self._plan = plan or prepare(package)
        self._tap = tap
        self._states: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Set every state to zero."""
        import torch

        self._states.clear()
        for item in self._program.inputs:
            if item.type.kind == "state":
                self._states[item.name] = torch.zeros(item.type.shape)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name, in the program's order, for one array per input.

        Raises `RunnerError`, stage `input`, for a missing or unknown name, a wrong shape or dtype; stage `invoke` names the operator that failed.
        """
        return self.arrays(self.compute(self.tensors(inputs)))

    def tensors(self, inputs: Arrays) -> dict[str, Any]:
        """Inputs as the program takes them."""
        wanted = [item for item in self._program.inputs if item.type.kind != "state"]
        unknown = set(inputs) - {item.name for item in wanted}
        if unknown:
            raise RunnerError(f"unknown input {', '.join(sorted(unknown))}", f"inputs: {', '.join(x.name for x in wanted)}", stage="input")
        images = {feature.name: feature for feature in self._program.features_in if feature.channels}
        given = {name: _planar(array, images[name]) if name in images else array for name, array in inputs.items()}
        listed = {feature.name: feature.shapes for feature in self._program.features_in if feature.shapes}
        tensors = {item.name: _tensor(item, given) for item in wanted}
        for name, shapes in listed.items():
            if tuple(tensors[name].shape) not in shapes:
                known = ", ".join("x".join(map(str, shape)) for shape in shapes)
                raise RunnerError(f"input {name} is {list(tensors[name].shape)}, and the package lists {known}", stage="input")
        return tensors

    def compute(self, tensors: Mapping[str, Any]) -> list[Any]:
        """The program's outputs, in its order, as it makes them."""
        return interpreter.run(self._plan, tensors, self._states, self._tap)

    def arrays(self, results: list[Any]) -> dict[str, Array]:
        """Outputs as arrays of the types that the package's interface states."""
        types = {feature.name: feature.dtype for feature in self._program.features_out}
        return {name: _array(value, types.get(name, "")) for name, value in zip(self._plan.outputs, results, strict=True)}


def _planar(array: Array, image: spec.Feature) -> Array:
    """Pixels [1, height, width, channels], red first, as the program takes them; what is so already stays."""
    batch, channels, height, width = image.shape
    flexible = image.flexible and len(array.shape) == 4 and array.shape[1] != channels
    if array.shape == image.shape or (array.shape != (batch, height, width, channels) and not flexible):
        return array
    ordered = array[..., ::-1] if image.reversed else array
    return ordered.transpose(0, 3, 1, 2)


def _tensor(item: spec.Named, inputs: Mapping[str, Any]) -> Any:
    import numpy as np
    import torch

    if item.name not in inputs:
        raise RunnerError(f"the input {item.name} is missing", stage="input")
    array = np.asarray(inputs[item.name])
    shape = item.type.shape
    if len(array.shape) != len(shape) or any(
        n not in (size, spec.UNKNOWN) and size != spec.UNKNOWN for n, size in zip(array.shape, shape, strict=True)
    ):
        raise RunnerError(f"input {item.name} is {list(array.shape)}, but the program takes {list(shape)}", stage="input")
    if array.dtype.kind not in "fiub":
        raise RunnerError(f"input {item.name} is {array.dtype}", stage="input")
    tensor = torch.from_numpy(np.array(array, np.float32 if item.type.dtype.startswith("float") else np.int64, order="C"))
    return rounded(tensor, item.type.dtype)


def _array(value: Any, dtype: str) -> Array:
    import numpy as np

    array = value.numpy()
    return array.astype(dtype) if dtype and dtype in ("float32", "float16", "float64", "int32", "int8") else np.asarray(array)
