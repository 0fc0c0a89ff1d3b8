"""What a user's function may return instead of a plain module and plain tensors, made plain before it is exported."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.errors import UsageError
from edgekit.formats._source import check_names

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def unwrapped(module: Any) -> Any:
    """The module inside `torch.compile` and the data-parallel wrappers, whose own forward takes anything."""
    while True:
        parallel = type(module).__name__ in ("DataParallel", "DistributedDataParallel")
        inner = module.module if parallel else getattr(module, "_orig_mod", None)
        if inner is None:
            return module
        module = inner


def argument_names(forward: Any, count: int = 0) -> list[str]:
    """Names of a forward function's arguments, without `self` and `**kwargs`; of `*args` (`args_0`, ...) as many as make `count` in all."""
    kinds = (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    more = next((parameter.name for parameter in parameters if parameter.kind == inspect.Parameter.VAR_POSITIONAL), None)
    return names + ([f"{more}_{i}" for i in range(count - len(names))] if more else [])


def by_position(forward: Any, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments as far as they go from the first on, the rest by name: converters take a flat program as it is."""
    parameters = inspect.signature(forward).parameters
    plain = [name for name, parameter in parameters.items() if parameter.kind in _POSITIONAL]
    first = list(itertools.takewhile(lambda name: name in arguments, plain))
    if len(first) == len(plain):
        first += [name for name in arguments if name not in parameters]
    return tuple(arguments[name] for name in first), {name: value for name, value in arguments.items() if name not in first}


def named_examples(examples: Any, names: Sequence[str]) -> dict[str, Any]:
    """Example inputs (a tensor, a tuple or a dict) by argument name, each a tensor of its own: exporting takes one given twice for one input.

    Raises `UsageError` for examples that do not fit the names.
    """
    import torch
    import torch.utils._pytree as pytree

    if examples is None:
        return {}
    examples = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), examples)
    if isinstance(examples, Mapping):
        check_names(dict.fromkeys(examples, ()), names)
        return dict(examples)
    flat = tuple(examples) if isinstance(examples, (tuple, list)) else (examples,)
    if len(flat) > len(names):
        takes = f"{len(names)}: {', '.join(names)}" if names else "none by name"
        raise UsageError(f"{len(flat)} example inputs, but forward takes {takes}", "return (module, example inputs), one an argument of forward")
    return dict(zip(names, flat, strict=False))


def in_float32(module: Any, examples: Mapping[str, Any]) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """The module and its examples with half precision widened to float32, exactly: a reference computes in float32, and targets narrow it again."""
    import torch
    import torch.utils._pytree as pytree

    halves = (torch.bfloat16, torch.float16)
    widened = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.float() if tensor.dtype in halves else tensor, dict(examples))
    narrow = [(name, tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.dtype in halves]
    if not narrow:
        return module, widened, ()
    kind = str(narrow[0][1].dtype).removeprefix("torch.")
    return module.float(), widened, (f"the model is in {kind} ({narrow[0][0]}): it is taken as float32",)
