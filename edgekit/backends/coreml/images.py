"""A float32 package whose input is an image: the stored preprocessing, from pixel to value, becomes part of the program."""

from __future__ import annotations

import dataclasses

from edgekit import formats, pixels
from edgekit.backends import Context
from edgekit.backends.coreml import program as programs
from edgekit.formats import Model, mlprogram, mlprogram_write


def with_image(model: Model, context: Context) -> Model:
    """A copy of a float32 package that takes pixels. Raises `UsageError` where the preprocessing does not fit the input.

    Core ML's own image inputs have one scale for all channels; here every channel has its own, as two operators that are exact where the
    program is: (pixel + offset / scale) * scale, so that half precision rounds what is small.
    """
    assert context.preprocess is not None
    edge = pixels.edge(model.signature, context.preprocess)
    assert model.path is not None
    name = mlprogram.feature_names(model)[edge.inputs[0].name]
    made = programs.with_image(model.path, str(context.target.options.get("deployment", "iOS16")), name, edge.inputs[0])
    outputs = [feature.name for feature in mlprogram.package_of(model).program.features_out]
    path = mlprogram_write.save(made, context.workdir / "pixels.mlpackage", [name], outputs)
    opened: Model = formats.module("mlprogram").open(str(path), {})
    return dataclasses.replace(opened, name=model.name, signature=edge, notices=model.notices)
