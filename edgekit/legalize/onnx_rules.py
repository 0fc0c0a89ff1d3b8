"""Named rewrites of ONNX graphs for a target: what was written out is fused, what the target refuses is split, each proven equal by running both.

A rule says which operators it removes and which it gives. A fusing rule applies where the target's table takes what it gives; a splitting rule
applies to operators that the target refuses. Patterns and replacements are onnxscript's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from edgekit import opset
from edgekit.errors import ConversionError, require
from edgekit.formats import Model, _onnx_view
from edgekit.formats import onnx as onnx_format
from edgekit.legalize.onnx_prepare import Prepared, random_inputs
from edgekit.opset import table
from edgekit.tensors import Array, Arrays

TOLERANCE = 1e-4
"""Largest change of an output, as a share of its largest magnitude: float rounding in another order, and no more."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rewrite. `patterns` are onnxscript patterns `(op, x, ...)`; `replace(op, ...)` builds the other form from what they bound, or None.

    `removes` are operator types that must be there (all of them) for the rule to be tried, `joined` two of them of which the second must read the
    first somewhere; a splitting rule removes one refused type.
    `opset` is the operator set that the new form needs.
    """

    name: str
    reason: str
    removes: tuple[str, ...]
    gives: tuple[str, ...]
    patterns: tuple[Callable[..., Any], ...]
    replace: Callable[..., Any]
    splits: bool = False
    commutes: bool = True
    opset: int = 17
    joined: tuple[str, str] | None = None


def legalize(prepared: Prepared, delegate: str, samples: Sequence[Arrays] = ()) -> Prepared:
    """The prepared model with the rules applied that `delegate` needs. `samples` (by the source's names) prove equality beside random inputs."""
    from edgekit.legalize import onnx_functions, onnx_fuse, onnx_norms, onnx_places, onnx_rank, onnx_resize, onnx_split, onnx_windows

    modules = (onnx_fuse, onnx_split, onnx_norms, onnx_resize, onnx_windows, onnx_places, onnx_rank)
    rules = tuple(rule for module in modules for rule in module.RULES)
    own = frozenset(kind for rule in rules if rule.splits for kind in rule.removes)
    model, feeds, notices = prepared.model, [*_feeds(prepared, samples[:2]), random_inputs(prepared.model.signature, 1)], list(prepared.notices)
    for left_alone in (own, frozenset[str]()):  # the definition of an operator only where no rule knows better
        defined, told = onnx_functions.written_out(model, delegate, left_alone)
        model = _proven(model, defined, feeds, told, notices)
        for rule in rules if left_alone or told else ():
            model = _ruled(rule, model, delegate, feeds, notices)
    return dataclasses.replace(prepared, model=model, notices=tuple(notices))


def _ruled(rule: Rule, model: Model, delegate: str, feeds: Sequence[Arrays], notices: list[str]) -> Model:
    if not _wanted(rule, model, delegate):
        return model
    proto, count = apply(rule, model.handle)
    return _proven(model, dataclasses.replace(model, handle=proto), feeds, (f"{rule.name}: {count} x: {rule.reason}",) if count else (), notices)


def _proven(model: Model, changed: Model, feeds: Sequence[Arrays], told: Sequence[str], notices: list[str]) -> Model:
    """`changed` where it computes the same and there is something to tell; what is told goes to `notices`."""
    if not told:
        return model
    try:
        worst = difference(model, changed, feeds)
    except ConversionError as error:
        notices.append(f"{told[0].partition(':')[0]}: left as it is: the other form does not run: {error.message}")
        return model
    if worst <= TOLERANCE:
        notices.extend(told)
        return changed
    notices.append(f"{told[0].partition(':')[0]}: left as it is: the other form differs by {worst:.2g} of the output")
    return model


def _feeds(prepared: Prepared, samples: Sequence[Arrays]) -> list[dict[str, Array]]:
    """Samples by the prepared graph's names and in its types."""
    types = {spec.name: spec.dtype for spec in prepared.model.signature.inputs}
    names = {source: name for source, name in prepared.inputs.items() if name in types}
    return [{name: sample[source].astype(types[name]) for source, name in names.items()} for sample in samples]


def apply(rule: Rule, proto: Any) -> tuple[Any, int]:
    """A copy of a `ModelProto` with one rule applied wherever it matches, and how often it did."""
    require("onnxscript", extra="onnx", purpose="rewriting an ONNX graph")
    import onnx
    import onnx_ir
    from onnxscript.rewriter import pattern

    version = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    raised = onnx.version_converter.convert_version(proto, rule.opset) if version < rule.opset else proto
    model = onnx_ir.serde.deserialize_model(raised)
    rules = [pattern.RewriteRule(found, rule.replace, name=rule.name) for found in rule.patterns]
    count = pattern.RewriteRuleSet(rules, commute=rule.commutes).apply_to_model(model)
    if not count:
        return proto, 0
    made = onnx_ir.serde.serialize_model(model)
    for node in made.graph.node:
        del node.metadata_props[:]
    return onnx.shape_inference.infer_shapes(made, data_prop=True), int(count)


def difference(before: Model, after: Model, feeds: Sequence[Arrays]) -> float:
    """The largest change of an output over `feeds`, as a share of its largest magnitude; infinite when shapes or finiteness change."""
    first, second = onnx_format.session(before), onnx_format.session(after)
    return max((_change(a, b) for feed in feeds for a, b in zip(first.run(feed).values(), second.run(feed).values(), strict=True)), default=0.0)


def _change(before: Array, after: Array) -> float:
    import numpy as np

    if before.shape != after.shape or before.dtype != after.dtype:
        return float("inf")
    if np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
        return 0.0
    finite = np.isfinite(before)
    if before.dtype.kind != "f" or not np.array_equal(before[~finite], after[~finite], equal_nan=True):
        return float("inf")
    before, after = before[finite], after[finite]
    return float(np.abs(before.astype(np.float64) - after).max() / max(float(np.abs(before).max()), 1e-12))


def _wanted(rule: Rule, model: Model, delegate: str) -> bool:
    types = {node.op_type for node in model.handle.graph.node}
    takes = table.load(delegate).ops
    if not set(rule.removes) <= types or not set(rule.gives) <= set(takes) or (rule.joined and not _are_joined(model.handle, *rule.joined)):
        return False
    return not rule.splits or bool(set(rule.removes) & _refused(model, delegate))


def _are_joined(proto: Any, maker: str, reader: str) -> bool:
    made = {name for node in proto.graph.node if node.op_type == maker for name in node.output}
    return any(made.intersection(node.input) for node in proto.graph.node if node.op_type == reader)


def _refused(model: Model, delegate: str) -> set[str]:
    """Types of the operators that `delegate` does not take as they are here."""
    graph = _onnx_view.graph(model.handle, 0)
    return {verdict.type for verdict in opset.judge(graph, delegate) if verdict.status != "accelerated"}
