"""`package.module:function`: a function that builds a PyTorch or Keras model. It is found as `python -m` would find it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from edgekit import plugins
from edgekit.errors import ConversionError
from edgekit.formats import Model, Shapes, module


def open(reference: str, inputs: Shapes) -> Model:
    """Call the function and open what it returns.

    A `torch.nn.Module`, `(module, example inputs)`, or a Keras model. Raises `UsageError` when nothing of that name exists,
    `ConversionError` when the function fails or returns something else.
    """
    function = plugins.function(reference)
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
    model: Model = module(framework).from_module(built, examples, inputs, name)
    return model


def _framework(built: Any) -> str | None:
    """Which framework's class `built` is an instance of, without importing a framework."""
    for base in type(built).__mro__:
        if base.__module__.startswith("torch.nn.") and base.__name__ == "Module":
            return "torch"
        if base.__module__.startswith(("keras.", "tf_keras.")) and base.__name__ == "Model":
            return "keras"
    return None
