"""TensorFlow Lite Micro's kernels: chosen by operator, whatever its version; types decide inside. See `targets/ops/tflm.json`."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View


def refusal(view: View, operator: Operator) -> str | None:
    """Why TFLM has no kernel for `operator`, or None."""
    if operator.custom:
        known = operator.type in view.table.custom
        return None if known else f"{operator.type} is a custom operator that {view.table.label} does not have"
    return rules.by_table(view, operator) or _unscaled(view, operator) or _without_bias(view, operator) or _computed_weights(view, operator)


def _unscaled(view: View, operator: Operator) -> str | None:
    """RELU6 clamps stored values (`kernels/activations.cc`): with two scales it computes something else, where RELU rescales."""
    if operator.type != "RELU6":
        return None
    given, made = view.tensor(operator, 0), view.output(operator)
    if given is None or not given.scale or (given.scale, given.zero_point) == (made.scale, made.zero_point):
        return None
    return f"{view.table.label} clamps RELU6 without rescaling, and its output has another scale than its input"


def _without_bias(view: View, operator: Operator) -> str | None:
    """TRANSPOSE_CONV of int16 looks at the type of a bias that may be absent (`kernels/cmsis_nn/transpose_conv.cc`): a fault on the core."""
    given = view.tensor(operator, 2)
    if operator.type != "TRANSPOSE_CONV" or given is None or given.dtype != "int16" or view.tensor(operator, 3) is not None:
        return None
    return f"{view.table.label} reads the bias of an int16 TRANSPOSE_CONV, and it has none: give the layer a bias"


def _computed_weights(view: View, operator: Operator) -> str | None:
    """CMSIS-NN with MVE adds the weights of FULLY_CONNECTED up before the first run (`kernels/cmsis_nn/fully_connected.cc`): a fault on the core."""
    if operator.type != "FULLY_CONNECTED" or view.is_static(operator, 1):
        return None
    return f"{view.table.label} reads the weights of FULLY_CONNECTED before the first run, and these are computed: use BATCH_MATMUL"
