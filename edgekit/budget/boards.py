"""Flash and SRAM of a board as limits, and what to say of a model that breaks one."""

from __future__ import annotations

import msgspec

from edgekit import device
from edgekit.budget import Excess, Limits, memory
from edgekit.errors import UsageError, close_match
from edgekit.graph import Graph
from edgekit.parity import Finding
from edgekit.target import Target


def within(limits: Limits, board: str, target: Target) -> Limits:
    """`limits` with the flash and SRAM of `board` where none are given. Raises `UsageError` for a board that is not one of the target's."""
    if not board:
        return limits
    known = device.models()
    if board not in known:
        raise UsageError(f"there is no board {board!r}", close_match(board, [m.name for m in known.values() if m.sram_bytes]))
    found = known[board]
    if target.name not in found.targets or found.flash_bytes is None or found.sram_bytes is None:
        raise UsageError(f"{found.name} is no board for {target.name}", f"its targets are {', '.join(found.targets)}")
    flash, sram = limits.max_flash_bytes or found.flash_bytes, limits.max_sram_bytes or found.sram_bytes
    return msgspec.structs.replace(limits, max_flash_bytes=flash, max_sram_bytes=sram)


def finding(excess: Excess, graph: Graph, precision: str) -> Finding:
    """A broken limit as a finding: for SRAM with the operator at the peak and what would lower it; `precision` is that of the nearest plan."""
    needed = f"the nearest plan is {precision}: {excess.needed}"
    peak = memory.peak(graph) if excess.what == "sram" else None
    if peak is None:
        return Finding("error", "over-budget", excess.message, needed)
    rest = f"the other {excess.used_bytes - peak.live_bytes:,} bytes are variables, the runtime's own records, buffers and stack"
    return Finding("error", "over-budget", f"{excess.message}; {peak.message}; {rest}", f"{peak.suggestion}; {needed}")
