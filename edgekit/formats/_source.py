"""What all model sources share: digests of files, sizes of dynamic dimensions, names of outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgekit.errors import ConversionError, UsageError, close_match
from edgekit.tensors import TensorSpec

DYNAMIC = -1


def digest_of_files(path: Path) -> str:
    """SHA-256 (hex) of a file, or of every file below a folder with its relative name, in sorted order."""
    total = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        if file != path:
            total.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                total.update(block)
    return total.hexdigest()


def check_names(inputs: Mapping[str, Sequence[int]], known: Sequence[str]) -> None:
    """Raise `UsageError` for a shape that was given to an input the model does not have, or that has a size below one."""
    for name, shape in inputs.items():
        if name not in known:
            raise UsageError(f"--input {name}: the model has no input of that name", close_match(name, known))
        if any(size < 1 for size in shape):
            raise UsageError(f"--input {name}={'x'.join(map(str, shape))}: sizes start at 1", f"for example --input {name}=1x3x224x224")


def fix_shapes(specs: Sequence[TensorSpec], inputs: Mapping[str, tuple[int, ...]]) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
    """Give every dynamic dimension (-1) of `specs` a size; the notices say which dimension of which input was fixed.

    Sizes come from `inputs`. A leading dimension that is the only dynamic one of an input of rank two or more is the batch: it becomes 1.
    Raises `ConversionError` for a dynamic dimension without a size, `UsageError` for a shape that contradicts the model's.
    """
    check_names(inputs, [spec.name for spec in specs])
    fixed, notices = [], []
    for spec in specs:
        shape = _fix_one(spec, inputs.get(spec.name))
        axes = [axis for axis, size in enumerate(spec.shape) if size == DYNAMIC]
        notices += [f"input {spec.name}: dimension {axis} was dynamic and is fixed to {shape[axis]}" for axis in axes]
        fixed.append(TensorSpec(spec.name, shape, spec.dtype, layout=spec.layout))
    return tuple(fixed), tuple(notices)


def _fix_one(spec: TensorSpec, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    if wanted is None:
        return _without_size(spec)
    if len(wanted) != len(spec.shape) or any(known not in (DYNAMIC, size) for known, size in zip(spec.shape, wanted, strict=True)):
        raise UsageError(
            f"--input {spec.name}={'x'.join(map(str, wanted))} contradicts the model, which takes {show(spec.shape)}",
            "leave it out, or keep the sizes that are fixed",
        )
    return tuple(wanted)


def _without_size(spec: TensorSpec) -> tuple[int, ...]:
    axes = [axis for axis, size in enumerate(spec.shape) if size == DYNAMIC]
    if axes == [0] and len(spec.shape) >= 2:
        return (1, *spec.shape[1:])
    if axes:
        example = "x".join("1" if axis == 0 else "N" if size == DYNAMIC else str(size) for axis, size in enumerate(spec.shape))
        which = f"dimension {axes[0]} is" if len(axes) == 1 else f"dimensions {', '.join(map(str, axes))} are"
        raise ConversionError(f"input {spec.name} {show(spec.shape)}: {which} dynamic", f"give every size: --input {spec.name}={example}")
    return spec.shape


def show(shape: Sequence[int]) -> str:
    """`[1, ?, 3]` for a shape with a dynamic second dimension."""
    return "[" + ", ".join("?" if size == DYNAMIC else str(size) for size in shape) + "]"


def image_layout(shape: Sequence[int], dtype: str, layout: str) -> str:
    """The framework's `layout` for a rank-4 float tensor, empty for any other."""
    return layout if len(shape) == 4 and dtype in ("float32", "float16", "float64") else ""
