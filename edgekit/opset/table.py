"""Operator tables: what a delegate takes, as data in `targets/ops/*.json`, each with its sources."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from edgekit import resources, target


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a delegate asks of one operator; a field at its default asks nothing.

    `dtypes` are the types of its data tensors; `dtype_levels` the feature level from which one of them counts. `static` maps an input
    position to what it is (weights, axis ...) and asks for a constant there. `dynamic_range` are weight types taken beside float activations.
    `scale_ratio` bounds input scale / output scale, `scale_product_ratio` the product of both input scales / output scale,
    `requantize_ratio` input / output scale where both are integers: low inclusive, high exclusive.
    `attributes` maps an attribute to the values taken. `maps_to` names the delegate's own operator. `since` is the first version of the runtime
    whose delegate takes it, where that is later than the oldest runtime that edgekit runs.
    """

    dtypes: tuple[str, ...] = ()
    dtype_levels: dict[str, int] = {}
    rank: int = 0
    min_rank: int = 0
    max_rank: int = 0
    min_version: int = 0
    max_version: int = 0
    exact_version: int = 0
    min_level: int = 0
    inputs: tuple[int, int] | None = None
    outputs: tuple[int, int] | None = None
    required_inputs: int = 0
    fused: tuple[str, ...] = ()
    static: dict[int, str] = {}
    same_types: bool = False
    scale_ratio: tuple[float, float] | None = None
    scale_product_ratio: tuple[float, float] | None = None
    requantize_ratio: tuple[float, float] | None = None
    per_channel_axis: int | None = None
    dynamic_range: tuple[str, ...] = ()
    attributes: dict[str, tuple[Any, ...]] = {}
    maps_to: str = ""
    since: str = ""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One delegate's operators by type. `label` is its name in a sentence; `max_partitions` 0 means no limit.

    `left` says why operators that are known not to be taken are left.
    """

    delegate: str
    label: str
    sources: tuple[dict[str, str], ...]
    ops: dict[str, Rule]
    max_partitions: int = 0
    notes: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    custom: tuple[str, ...] = ()
    left: dict[str, str] = {}
    api_levels: dict[int, int] = {}


@cache
def load(delegate: str) -> Table:
    """The table of a delegate. Raises `UsageError` with the close match for an unknown one."""
    return target.table("ops", delegate, Table, "operator table for the delegate")


@cache
def suggestions() -> dict[str, str]:
    """What to do about an operator that delegates lack, by type."""
    path = resources.directory("targets") / "ops" / "suggestions" / "litert.json"
    return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
