"""Judge one operator by one table rule. Each predicate gives the reason why the delegate refuses, or None."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset.table import Rule
from edgekit.opset.view import View, data_inputs

QUANTIZED = frozenset(("int8", "uint8", "int16", "int4"))


def by_table(view: View, operator: Operator) -> str | None:
    """Judge by the view's table alone: the reason for a refusal, or None."""
    rule = view.table.ops.get(operator.type)
    if rule is None:
        return view.table.left.get(operator.type, f"{view.table.label} does not have {operator.type}")
    return refusal(view, operator, rule)


def refusal(view: View, operator: Operator, rule: Rule) -> str | None:
    """The first reason in `rule` that speaks against `operator`."""
    for predicate in (_version, _level, _fused, _count, _dtypes, _ranks, _same_types, _static, _attributes, _scales, _weights):
        reason = predicate(view, operator, rule)
        if reason:
            return reason
    return None


def block(_view: View, operator: Operator) -> str | None:
    """Why DEPTH_TO_SPACE and its inverse are refused by delegates that take larger blocks only, or None."""
    return "block size 1" if operator.attributes.get("block_size", 2) < 2 else None


def _version(view: View, operator: Operator, rule: Rule) -> str | None:
    version = operator.version
    if rule.exact_version and version != rule.exact_version:
        return f"version {version}, and {view.table.label} takes version {rule.exact_version} only"
    if rule.max_version and version > rule.max_version:
        return f"version {version}, and {view.table.label} takes versions up to {rule.max_version}"
    return f"version {version}, and {view.table.label} takes versions from {rule.min_version}" if version < rule.min_version else None


def _level(view: View, operator: Operator, rule: Rule) -> str | None:
    if view.level and rule.min_level > view.level:
        return f"it needs feature level {rule.min_level}, and the target promises {view.level}"
    for tensor in view.data(operator):
        needed = rule.dtype_levels.get(tensor.dtype, 0)
        if view.level and needed > view.level:
            return f"{tensor.dtype} needs feature level {needed}, and the target promises {view.level}"
    return None


def _fused(_view: View, operator: Operator, rule: Rule) -> str | None:
    fused = operator.attributes.get("fused_activation_function", "NONE")
    return f"the fused activation {fused} is not taken" if rule.fused and fused not in rule.fused else None


def _count(_view: View, operator: Operator, rule: Rule) -> str | None:
    count = len(operator.inputs)
    if rule.inputs and not rule.inputs[0] <= count <= rule.inputs[1]:
        return f"{count} inputs, and it takes {rule.inputs[0]} to {rule.inputs[1]}" if rule.inputs[0] < rule.inputs[1] else f"{count} inputs"
    if rule.outputs and not rule.outputs[0] <= len(operator.outputs) <= rule.outputs[1]:
        return f"{len(operator.outputs)} outputs, and it gives {rule.outputs[0]} to {rule.outputs[1]}"
    present = [i for i in operator.inputs[: rule.required_inputs] if i >= 0]
    return "it has no bias" if len(present) < rule.required_inputs else None


def _dtypes(view: View, operator: Operator, rule: Rule) -> str | None:
    if not rule.dtypes:
        return None
    for tensor in view.data(operator):
        if tensor.dtype not in rule.dtypes and not (tensor.dtype == "float16" and operator.type == "DEQUANTIZE"):
            return f"{tensor.dtype} tensors ({tensor.name}) are not taken, only {', '.join(rule.dtypes)}"
    return None


def _ranks(view: View, operator: Operator, rule: Rule) -> str | None:
    for tensor in view.data(operator):
        rank = len(tensor.shape)
        if rule.rank and rank != rule.rank and not tensor.constant:
            return f"{tensor.name} has {rank} dimensions, and it takes {rule.rank}"
        if rank < rule.min_rank or (rule.max_rank and rank > rule.max_rank):
            return f"{tensor.name} has {rank} dimensions, and it takes {rule.min_rank} to {rule.max_rank}"
    return None


def _same_types(view: View, operator: Operator, rule: Rule) -> str | None:
    types = {tensor.dtype for tensor in view.data(operator)}
    return f"its tensors are of different types ({', '.join(sorted(types))})" if rule.same_types and len(types) > 1 else None


def _static(view: View, operator: Operator, rule: Rule) -> str | None:
    for position, what in rule.static.items():
        if not view.is_static(operator, position):
            return f"its {what} is computed at run time, and must be a constant"
    return None


def _attributes(_view: View, operator: Operator, rule: Rule) -> str | None:
    for name, values in rule.attributes.items():
        found = operator.attributes.get(name, values[0])
        if found not in values:
            return f"{name.replace('_', ' ')} {found} is not taken"
    return None


def _scales(view: View, operator: Operator, rule: Rule) -> str | None:
    if not operator.outputs or view.output(operator).dtype not in QUANTIZED:
        return None
    inputs = [view.graph.tensors[i] for i in data_inputs(operator)]
    scales = [t.scale[0] for t in inputs if t.dtype in QUANTIZED and t.scale]
    out = view.output(operator).scale[:1]
    if not out or not scales or not out[0]:
        return "a quantized tensor has no scale" if rule.scale_ratio or rule.scale_product_ratio else None
    bounds = [(s / out[0], rule.scale_ratio) for s in scales] + [(s / out[0], rule.requantize_ratio) for s in scales]
    if len(scales) > 1:
        bounds.append((scales[0] * scales[1] / out[0], rule.scale_product_ratio))
    for ratio, limits in bounds:
        if limits and not limits[0] <= ratio < limits[1]:
            return f"input scale over output scale is {ratio:.6g}, outside {limits[0]:.6g} to {limits[1]:.6g}"
    return None


def _weights(view: View, operator: Operator, rule: Rule) -> str | None:
    """Weights at position 1 against the type of the activations; per-channel scales along the right axis."""
    if rule.per_channel_axis is None and not rule.dynamic_range:
        return None
    weights, data = view.tensor(operator, 1), view.data(operator)[0]
    if weights is None:
        return None
    if data.dtype == "float32" and weights.dtype not in ("float32", "float16", *rule.dynamic_range):
        return f"{weights.dtype} weights beside float activations are not taken"
    if data.dtype in QUANTIZED and weights.dtype not in (data.dtype, "int8", "int4", "int2"):
        return f"{weights.dtype} weights beside {data.dtype} activations are not taken"
    if data.dtype == "uint8" and (len(weights.scale) > 1 or weights.axis):
        return "uint8 weights must share one scale, without an axis"
    if len(weights.scale) > 1 and weights.axis != rule.per_channel_axis:
        return f"weights have a scale per channel along axis {weights.axis}, and it takes axis {rule.per_channel_axis}"
    return None
