"""Flash and SRAM of a board as limits, and what to say of a model that breaks one."""

from __future__ import annotations

import msgspec

from edgekit import device
from edgekit.budget import Excess, Limits, memory
from edgekit.errors import UsageError, close_match
from edgekit.graph import Graph
from edgekit.parity import Finding
from edgekit.target import Target

MICROCONTROLLER = "none"
"""The operating system of a microcontroller's target."""


def within(limits: Limits, board: str, target: Target) -> Limits:
    """`limits` with the flash and SRAM of `board` where none are given.

    Raises `UsageError` for a board that is not one of the target's, and for flash or SRAM of a target that is no microcontroller.
    """
    asked = [option for option, most in (("--max-flash", limits.max_flash_bytes), ("--max-sram", limits.max_sram_bytes)) if most is not None]
    if target.os != MICROCONTROLLER and (board or asked):
        what = f"{target.name} is no microcontroller: {'--board' if board else asked[0]} does not bound it"
        raise UsageError(what, "--max-size bounds model and runtime, --max-model-size the artifact")
    if not board:
        return limits
    known = device.models()
    if board not in known:
        raise UsageError(f"there is no board {board!r}", close_match(board, [m.name for m in known.values() if m.sram_bytes]))
    found = known[board]
    if target.name not in found.targets or found.flash_bytes is None or found.sram_bytes is None:
        raise UsageError(f"{found.name} is no board for {target.name}", f"its targets are {', '.join(found.targets)}")
    flash = found.flash_bytes if limits.max_flash_bytes is None else limits.max_flash_bytes
    sram = found.sram_bytes if limits.max_sram_bytes is None else limits.max_sram_bytes
    return msgspec.structs.replace(limits, max_flash_bytes=flash, max_sram_bytes=sram)


def finding(excess: Excess, graph: Graph, precision: str) -> Finding:
    """A broken limit as a finding: for SRAM with the operator at the peak and what would lower it; `precision` is that of the nearest plan."""
    needed = f"the nearest plan is {precision}: {excess.needed}"
    peak = memory.peak(graph) if excess.what == "sram" else None
    if peak is None:
        return Finding("error", "over-budget", excess.message, needed)
    rest = f"the other {excess.used_bytes - peak.live_bytes:,} bytes are variables, the runtime's own records, buffers and stack"
    lower = peak.suggestion
    if peak.live_bytes * 2 < excess.used_bytes:
        lower = f"fewer operators or less state: activations are {100 * peak.live_bytes // excess.used_bytes}% of it ({lower})"
    return Finding("error", "over-budget", f"{excess.message}; {peak.message}; {rest}", f"{lower}; {needed}")
