"""Named rewrites of ONNX graphs for a target: what was written out is fused, what the target refuses is split, each proven equal by running both.

A rule says which operators it removes and which it gives. A fusing rule applies where the target's table takes what it gives; a splitting rule
applies to operators that the target refuses. Patterns and replacements are onnxscript's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from edgekit import opset
from edgekit.errors import require
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

    `removes` are operator types that must be there (all of them) for the rule to be tried; a splitting rule removes one refused type.
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


def legalize(prepared: Prepared, delegate: str, samples: Sequence[Arrays] = ()) -> Prepared:
    """The prepared model with the rules applied that `delegate` needs. `samples` (by the source's names) prove equality beside random inputs."""
    from edgekit.legalize import onnx_fuse, onnx_norms, onnx_rank, onnx_resize, onnx_split

    model, notices = prepared.model, list(prepared.notices)
    feeds = [*_feeds(prepared, samples[:2]), random_inputs(model.signature, 1)]
    for rule in (*onnx_fuse.RULES, *onnx_split.RULES, *onnx_norms.RULES, *onnx_resize.RULES, *onnx_rank.RULES):
        if not _wanted(rule, model, delegate):
            continue
        proto, count = apply(rule, model.handle)
        if not count:
            continue
        changed = dataclasses.replace(model, handle=proto)
        worst = difference(model, changed, feeds)
        if worst > TOLERANCE:
            notices.append(f"{rule.name}: left as it is: the other form differs by {worst:.2g} of the output")
            continue
        model = changed
        notices.append(f"{rule.name}: {count} x: {rule.reason}")
    return dataclasses.replace(prepared, model=model, notices=tuple(notices))


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
    if before.dtype.kind != "f" or not (np.isfinite(before).all() and np.isfinite(after).all()):
        return float("inf")
    return float(np.abs(before.astype(np.float64) - after).max() / max(float(np.abs(before).max()), 1e-12))


def _wanted(rule: Rule, model: Model, delegate: str) -> bool:
    types = {node.op_type for node in model.handle.graph.node}
    takes = table.load(delegate).ops
    if not set(rule.removes) <= types or not set(rule.gives) <= set(takes):
        return False
    return not rule.splits or bool(set(rule.removes) & _refused(model, delegate))


def _refused(model: Model, delegate: str) -> set[str]:
    """Types of the operators that `delegate` does not take as they are here."""
    graph = _onnx_view.graph(model.handle, 0)
    return {verdict.type for verdict in opset.judge(graph, delegate) if verdict.status != "accelerated"}
