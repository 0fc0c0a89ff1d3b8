"""How much flash the kernels take that a graph needs: sizes of TFLM's and CMSIS-NN's objects, before the linker drops what is unused."""

from __future__ import annotations

from edgekit.budget.catalogue import Catalogue, load, part
from edgekit.budget.parts import Part
from edgekit.graph import Graph

MEASURED_ON = "cortex-m4"
SHARED = {
    "kernel_util": (),
    "activations": ("RELU", "RELU6"),
    "arg_min_max": ("ARG_MAX", "ARG_MIN"),
    "comparisons": ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
    "conv": ("CONV_2D",),
    "depthwise_conv": ("DEPTHWISE_CONV_2D",),
    "detection_postprocess": ("TFLite_Detection_PostProcess",),
    "elementwise": ("ABS", "COS", "LOG", "LOGICAL_NOT", "RSQRT", "SIN", "SQRT", "SQUARE"),
    "ethosu": ("ethos-u",),
    "l2norm": ("L2_NORMALIZATION",),
    "logical": ("LOGICAL_AND", "LOGICAL_OR"),
    "lstm_eval": ("UNIDIRECTIONAL_SEQUENCE_LSTM",),
    "maximum_minimum": ("MAXIMUM", "MINIMUM"),
    "pad": ("PAD", "PADV2"),
    "pooling": ("AVERAGE_POOL_2D", "MAX_POOL_2D"),
    "reduce": ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ALL"),
    "reverse": ("REVERSE_V2",),
    "select": ("SELECT_V2",),
}
"""Object files that are not called like the one operator they hold."""


def kernels(graph: Graph, core: str, delegates: tuple[str, ...]) -> tuple[Part, ...]:
    """One part an object file that the graph's operators link, and one for each operator that CMSIS-NN speeds up; all estimated."""
    catalogue = load("tflm")
    types = {operator.type for operator in graph.operators}
    files = {"kernel_util"} | {name for name, held in SHARED.items() if types & set(held)}
    named = {name for held in SHARED.values() for name in held}
    files |= {kind.lower() for kind in types - named}
    rows = [row for row in catalogue.rows if row.variant == "kernel" and row.library.removeprefix("kernel ").removesuffix("_common") in files]
    found = [part(catalogue, row) for row in rows]
    return tuple(found) + (_cmsis(catalogue, types, core) if any(name.startswith("cmsis_nn") for name in delegates) else ())


def _cmsis(catalogue: Catalogue, types: set[str], core: str) -> tuple[Part, ...]:
    platform = core if core == "cortex-m55" else MEASURED_ON
    rows = [row for row in catalogue.rows if row.variant == "cmsis_nn" and row.platform == platform]
    return tuple(part(catalogue, row) for row in rows if row.library.removeprefix("CMSIS-NN for ") in types)
