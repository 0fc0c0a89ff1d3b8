"""`package.module:function`: a function that builds a PyTorch or Keras model. It is found as `python -m` would find it."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, UsageError, close_match
from edgekit.formats import Model, Shapes, module


def open(reference: str, inputs: Shapes) -> Model:
    """Call the function and open what it returns.

    A `torch.nn.Module`, `(module, example inputs)`, or a Keras model. Raises `UsageError` when nothing of that name exists,
    `ConversionError` when the function fails or returns something else.
    """
    function = load(reference)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for data; what a model's builder says is talk
            built = function()
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise ConversionError(f"{reference}: the function failed: {type(error).__name__}: {error}", "call it alone to see where") from error
    built, examples = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    framework = _framework(built)
    if framework is None:
        hint = "return a torch.nn.Module, (module, example inputs), or a Keras model"
        raise ConversionError(f"{reference}: returned a {type(built).__name__}", hint)
    name = reference.rpartition(":")[2]
    return module(framework).from_module(built, examples, inputs, name)  # type: ignore[no-any-return]  # format modules are found by name


def load(reference: str) -> Callable[[], Any]:
    """The function that `package.module:function` names; the working directory is searched as well."""
    module_name, _, function_name = reference.partition(":")
    if not module_name or not function_name.isidentifier():
        raise UsageError(f"{reference}: not of the form package.module:function")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = importlib.import_module(module_name)
    except ImportError as error:
        hint = f"run from the folder that holds {module_name.partition('.')[0]}"
        raise UsageError(f"{reference}: cannot import {module_name}: {error}", hint) from error
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise UsageError(f"{reference}: importing {module_name} failed: {type(error).__name__}: {error}", "import it alone to see where") from error
    function = getattr(found, function_name, None)
    if not callable(function):
        public = [name for name in vars(found) if not name.startswith("_")]
        raise UsageError(f"{reference}: {module_name} has no function {function_name}", close_match(function_name, public))
    return function  # type: ignore[no-any-return]  # a user's attribute


def _framework(built: Any) -> str | None:
    """Which framework's class `built` is an instance of, without importing a framework."""
    for base in type(built).__mro__:
        if base.__module__.startswith("torch.nn.") and base.__name__ == "Module":
            return "torch"
        if base.__module__.startswith(("keras.", "tf_keras.")) and base.__name__ == "Model":
            return "keras"
    return None
