"""Which operators LiteRT's XNNPACK delegate really took, read back from the interpreter's delegate nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ai_edge_litert.interpreter import Interpreter


def by_xnnpack(path: Path) -> tuple[frozenset[int], int]:
    """Indices of the main graph's operators that run inside delegate nodes, and the number of those nodes.

    A delegate node lists the tensors it reads and writes; what produces the written ones, back to the read ones, is inside it.
    """
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    return taken(interpreter)


def taken(interpreter: Any) -> tuple[frozenset[int], int]:
    operators = interpreter._get_ops_details()
    producer = {int(t): o for o in operators if o["op_name"] != "DELEGATE" for t in o["outputs"]}
    nodes = [o for o in operators if o["op_name"] == "DELEGATE"]
    found: set[int] = set()
    for node in nodes:
        known, waiting = {int(t) for t in node["inputs"]}, [int(t) for t in node["outputs"]]
        while waiting:
            tensor = waiting.pop()
            if tensor in known or tensor not in producer:
                continue
            known.add(tensor)
            found.add(int(producer[tensor]["index"]))
            known.update(int(t) for t in producer[tensor]["outputs"])
            waiting += [int(t) for t in producer[tensor]["inputs"] if t >= 0]
    shown = {int(t) for node in nodes for t in node["outputs"]}
    growing = True
    while growing:  # what reads a tensor that never leaves a delegate node is inside it too (assignments to variables give nothing out)
        hidden = {int(t) for o in operators if o["index"] in found for t in o["outputs"]} - shown
        more = {int(o["index"]) for o in operators if o["op_name"] != "DELEGATE" and hidden & {int(t) for t in o["inputs"]}} - found
        growing = bool(more)
        found |= more
    return frozenset(found), len(nodes)
