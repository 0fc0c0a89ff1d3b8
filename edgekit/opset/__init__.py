"""One verdict per operator and delegate: accelerated, fallback or unsupported, with a reason and a suggestion. Pure.

A delegate is a module of this package with `refusal(view, operator) -> str | None`, beside its table in `targets/ops`; a table without a
module is judged by the table alone. The rules follow the delegates' own sources (named in each table) and say where they are unverified.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from edgekit.graph import Graph, Operator
from edgekit.opset import partition, rules, table, view
from edgekit.opset.view import View
from edgekit.target import Target

Status = Literal["accelerated", "fallback", "unsupported"]

KERNELS = {"tflite": "litert_cpu"}
"""The table of kernels that run, by graph format, what a delegate refuses."""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What becomes of one operator under one delegate.

    `accelerated`: the delegate takes it. `fallback`: the runtime's own kernels run it. `unsupported`: nothing in the target runs it.
    `since` is the first version of the runtime whose delegate takes it, where older ones that are in use leave it to their own kernels.
    """

    operator: int
    type: str
    name: str
    delegate: str
    status: Status
    reason: str = ""
    suggestion: str = ""
    since: str = ""


class Summary(msgspec.Struct, frozen=True):
    """Counts of one delegate over the main graph (as runtimes report them; bodies of control flow have verdicts, but no count).

    `macs` and `accelerated_macs` are multiply-accumulates; `partitions` are the parts the delegate takes.
    """

    delegate: str
    accelerated: int
    fallback: int
    unsupported: int
    macs: int
    accelerated_macs: int
    partitions: int

    @property
    def macs_share(self) -> float:
        """Share of the multiply-accumulates that the delegate takes; 1.0 where there are none."""
        return self.accelerated_macs / self.macs if self.macs else 1.0


def check(graph: Graph, target: Target) -> tuple[Verdict, ...]:
    """Verdicts for every delegate of `target`, the planned one first, operators in execution order.

    Options of the profile: `kernels`, the table of what the runtime itself can run, where it is not the format's own;
    `nnapi_feature_level` (1 to 8) or `api_level`; `gpu_max_partitions` and `nnapi_max_partitions` over the delegate's own.
    """
    return tuple(verdict for delegate in target.delegates for verdict in judge(graph, delegate, target.options))


def judge(graph: Graph, delegate: str, options: Mapping[str, Any] | None = None) -> tuple[Verdict, ...]:
    """Verdicts of one delegate. Raises `UsageError` for a delegate that has no table."""
    options = options or {}
    found = table.load(delegate)
    seen, refuse, missing = view.make(graph, found, _level(found, options)), _rules_of(delegate), _missing_kernels(graph, options)
    refusals = {o.index: refuse(seen, o) for o in graph.operators}
    limit = int(options.get(f"{delegate}_max_partitions", found.max_partitions))
    taken = {index for index, reason in refusals.items() if reason is None}
    left_out = partition.beyond(graph, taken, limit) if limit else frozenset()
    smaller = f"{found.label} takes {limit} {'part' if limit == 1 else 'parts'} of the graph, and this operator lies in a smaller one"
    reasons = {o.index: smaller if o.index in left_out else refusals[o.index] for o in graph.operators}
    verdicts = (_verdict(o, delegate, reasons[o.index], missing.get(o.index)) for o in graph.operators)
    return tuple(_dated(verdict, found) for verdict in verdicts)


def summary(graph: Graph, verdicts: Sequence[Verdict]) -> tuple[Summary, ...]:
    """Counts per delegate, in the order the delegates first appear."""
    return tuple(_summary(graph, name, [v for v in verdicts if v.delegate == name]) for name in dict.fromkeys(v.delegate for v in verdicts))


def _summary(graph: Graph, delegate: str, verdicts: Collection[Verdict]) -> Summary:
    main = {o.index: o for o in graph.operators if not o.attributes.get("subgraph")}
    counts = {status: sum(v.status == status and v.operator in main for v in verdicts) for status in ("accelerated", "fallback", "unsupported")}
    taken = {v.operator for v in verdicts if v.status == "accelerated" and v.operator in main}
    macs, total = sum(main[i].macs for i in taken), sum(o.macs for o in main.values())
    return Summary(delegate, **counts, macs=total, accelerated_macs=macs, partitions=len(partition.parts(graph, taken)))


def _verdict(operator: Operator, delegate: str, reason: str | None, missing: str | None) -> Verdict:
    loads = operator.custom or missing is None  # a built-in operator without a kernel stops the load, before any delegate is asked
    if reason is None and loads:
        return Verdict(operator.index, operator.type, operator.name, delegate, "accelerated")
    suggestion = table.suggestions().get(operator.type, "replace this layer before exporting" if missing else "")
    status: Status = "unsupported" if missing else "fallback"
    return Verdict(operator.index, operator.type, operator.name, delegate, status, missing or reason or "", suggestion)


def _dated(verdict: Verdict, found: table.Table) -> Verdict:
    rule = found.ops.get(verdict.type)
    return msgspec.structs.replace(verdict, since=rule.since) if rule and rule.since and verdict.status == "accelerated" else verdict


def _missing_kernels(graph: Graph, options: Mapping[str, Any]) -> dict[int, str]:
    """Operators that the runtime itself has no kernel for, with the reason."""
    kernels = options.get("kernels", KERNELS.get(graph.format))
    if kernels is None:
        return {}
    seen, refuse = view.make(graph, table.load(kernels)), _rules_of(kernels)
    return {o.index: reason for o in graph.operators if (reason := refuse(seen, o)) is not None}


def _level(found: table.Table, options: Mapping[str, Any]) -> int:
    if not found.api_levels:
        return 0
    api = int(options.get("api_level", 0))
    promised = max((level for known, level in found.api_levels.items() if known <= api), default=max(found.api_levels.values()))
    return int(options.get(f"{found.delegate}_feature_level", promised))


def _rules_of(delegate: str) -> Callable[[View, Operator], str | None]:
    if importlib.util.find_spec(f"edgekit.opset.{delegate}") is None:
        return rules.by_table
    refusal: Callable[[View, Operator], str | None] = importlib.import_module(f"edgekit.opset.{delegate}").refusal
    return refusal
