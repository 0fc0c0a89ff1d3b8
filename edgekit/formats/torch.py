"""PyTorch: an exported program (`.pt2`), TorchScript (`.pt`), or a module that a function returned.

Every source becomes a `torch.export.ExportedProgram` with static shapes, kept as the model's handle. A flat list of its tensor inputs, in
order, is the signature.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.formats import Model, Session, Shapes, _torch_archive, _torch_script
from edgekit.formats._source import check_names, digest_of_files, fix_shapes
from edgekit.formats._torch_module import argument_names, by_position, in_float32, named_examples, unwrapped
from edgekit.formats._torch_program import (
    check_computable,
    check_inference_mode,
    digest_of_program,
    export,
    flat_outputs,
    flat_tensors,
    input_specs,
    output_specs,
    unflatten,
)
from edgekit.tensors import Array, Arrays, Signature, TensorSpec


def open(reference: str, inputs: Shapes) -> Model:
    """Open a `.pt2` or TorchScript file.

    Raises `ConversionError` for a file of weights alone, a damaged file, or a model in training mode.
    """
    path = Path(reference)
    kind = _torch_archive.kind(path)
    if kind == "program":
        return _open_program(path, inputs)
    if kind == "script":
        return _open_script(path, inputs)
    raise ConversionError(
        f"{path}: {kind}; edgekit does not run pickled code",
        "save the whole model with torch.export.save, or give package.module:function that builds it",
    )


def from_module(module: Any, examples: Any, inputs: Shapes, name: str) -> Model:
    """A model of a `torch.nn.Module` with example inputs (a tensor, a tuple or a dict by argument name) or shapes by argument name.

    Raises `ConversionError` without sizes, and as `open`.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return _from_script(module, examples, inputs, name)
    module, notices = _inference_mode(unwrapped(module))
    names = argument_names(module.forward, len(examples) if isinstance(examples, (tuple, list)) else 1)
    module, given, widened = in_float32(module, named_examples(examples, names))
    check_names(inputs, names)
    arguments = {n: _example(n, given.get(n), inputs.get(n)) for n in names if n in given or n in inputs}
    if not arguments:
        hint = f"return (module, example_inputs), or give --input {names[0] if names else 'NAME'}=1x3x224x224 for each input"
        raise ConversionError(f"{name}: the sizes of the inputs are unknown", hint)
    program = export(module, *by_position(module.forward, arguments), name)
    kept = all(_same_shape(given.get(n), arguments[n]) for n in arguments)
    return _model(program, name, digest_of_program(program), notices=(*notices, *widened), examples=kept)


def session(model: Model) -> Session:
    """Run the exported program on the CPU, without gradients."""
    return _TorchSession(model.handle.module(), model)


@dataclasses.dataclass(frozen=True)
class _TorchSession:
    module: Any
    model: Model

    def run(self, inputs: Arrays) -> dict[str, Array]:
        import numpy as np
        import torch

        flat = [torch.from_numpy(np.array(inputs[spec.name], order="C")) for spec in self.model.signature.inputs]
        args, kwargs = unflatten(self.model.handle, flat)
        with torch.no_grad(), _one_thread():
            outputs = flat_outputs(self.module(*args, **kwargs))
        return {spec.name: tensor.numpy() for spec, tensor in zip(self.model.signature.outputs, outputs, strict=True)}


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch with one thread: sums in one order, so that a reference is the same on every machine; and no spinning on a busy one."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _no_pickled_code() -> Iterator[None]:
    """Where a part of an archive is no plain tensor, PyTorch's loader runs its pickle; a variable of PyTorch's own forbids that."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _open_program(path: Path, inputs: Shapes) -> Model:
    torch = require("torch", extra="torch", purpose="reading an exported program")
    try:
        with _no_pickled_code():
            program = torch.export.load(path)
    except Exception as error:  # the loader raises whatever its parts raise
        raise ConversionError(f"{path}: not a readable exported program ({_first_line(error)})", "export it again with this PyTorch") from error
    specs = input_specs(program)
    fixed, notices = fix_shapes(specs, inputs)
    module, _, widened = in_float32(program.module(), {})
    if fixed == specs and not widened:
        return _model(program, path.stem, digest_of_files(path), path=path, notices=notices, names=[s.name for s in specs], examples=True)
    flat = [_example(spec.name, None, spec.shape, "float32" if widened and spec.dtype.endswith("float16") else spec.dtype) for spec in fixed]
    args, kwargs = unflatten(program, flat)
    program = export(module, args, kwargs, path.name)
    return _model(program, path.stem, digest_of_files(path), path=path, notices=(*notices, *widened), names=[s.name for s in specs])


def _open_script(path: Path, inputs: Shapes) -> Model:
    torch = require("torch", extra="torch", purpose="reading TorchScript")
    try:
        script = torch.jit.load(path, map_location="cpu")
    except Exception as error:  # the loader raises whatever its parts raise
        raise ConversionError(f"{path}: not readable TorchScript ({_first_line(error)})", "save it again with this PyTorch") from error
    return _from_script(script, None, inputs, path.stem, path)


def _from_script(script: Any, examples: Any, inputs: Shapes, name: str, path: Path | None = None) -> Model:
    """A model of a TorchScript module, with sizes from `inputs` or from examples."""
    script, notices = _inference_mode(script)
    arguments = [argument.name for argument in script.forward.schema.arguments][1:]
    check_names(inputs, arguments)
    script, given, widened = in_float32(script, named_examples(examples, arguments))
    names = _torch_script.inputs(script, (*inputs, *given))
    missing = next((argument for argument in names if argument not in inputs and argument not in given), None)
    if missing:
        raise ConversionError(f"{path or name}: TorchScript states no sizes; input {missing} is unknown", f"give --input {missing}=1x3x224x224")
    made = {argument: _example(argument, given.get(argument), inputs.get(argument)) for argument in names}
    made, typed = _torch_script.settled_types(script, made, [argument for argument in names if argument not in given], name)
    script, flat = _torch_script.of_inputs_alone(script, made), tuple(made.values())
    program = export(_torch_script.as_program(script, flat, name).module(), flat, {}, name)
    digest = digest_of_files(path) if path else digest_of_program(program)
    model = _model(program, name, digest, path=path, notices=(*notices, *widened, *typed), names=names)
    ready = session(model)
    _torch_script.check_equal(script, lambda values: list(ready.run(dict(zip(names, values, strict=True))).values()), flat, name)
    return model


def _model(
    program: Any,
    name: str,
    digest: str,
    *,
    path: Path | None = None,
    notices: Sequence[str] = (),
    names: Sequence[str] = (),
    examples: bool = False,
) -> Model:
    check_inference_mode(program)
    check_computable(program)
    specs = input_specs(program)
    if names:
        specs = tuple(TensorSpec(n, s.shape, s.dtype, layout=s.layout) for n, s in zip(names, specs, strict=True))
    kept = None
    if examples and program.example_inputs is not None:
        kept = {spec.name: tensor.detach().numpy() for spec, tensor in zip(specs, flat_tensors(program.example_inputs), strict=True)}
    return Model("torch", name, Signature(specs, output_specs(program)), digest, path, program, tuple(notices), kept)


def _inference_mode(module: Any) -> tuple[Any, tuple[str, ...]]:
    training = [name or "the module" for name, child in module.named_modules() if child.training and _differs_in_training(child)]
    module = module.eval()
    if not training:
        return module, ()
    more = f" and {len(training) - 1} more" if len(training) > 1 else ""
    return module, (f"the model was in training mode ({training[0]}{more}): switched to inference mode",)


def _differs_in_training(child: Any) -> bool:
    """Batch statistics and dropout; every fresh module says `training`, and most compute the same in both modes."""
    name = getattr(child, "original_name", type(child).__name__)
    if "InstanceNorm" in name:
        return getattr(child, "running_mean", None) is not None
    return any(kind in name for kind in ("BatchNorm", "Dropout", "RReLU"))


def _example(name: str, given: Any, shape: tuple[int, ...] | None, dtype: str = "float32") -> Any:
    import torch

    if shape is None or _same_shape(given, shape):
        return given
    wanted = given.dtype if isinstance(given, torch.Tensor) else getattr(torch, dtype)
    if not wanted.is_floating_point:
        return torch.zeros(shape, dtype=wanted)
    seed = sum(name.encode())
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(wanted)


def _same_shape(given: Any, other: Any) -> bool:
    return given is not None and tuple(getattr(given, "shape", ())) == tuple(getattr(other, "shape", other if isinstance(other, tuple) else ()))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
