"""A fixed part of ONNX's operator tests through the Hexagon route: each is exact, or refused with a reason; none is silently wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.conformance import node_tests, write_table
from tests.conformance.node_tests import Outcome

EVERY = 16
"""One case of this many, in the order of their names; all of them: `nox -s conformance`."""

ONCE_WRONG = (
    "test_attention_3d_scaled_expanded",
    "test_averagepool_2d_ceil",
    "test_averagepool_2d_pads",
    "test_convtranspose_pad",
    "test_convtranspose_group_2",
    "test_gemm_default_matrix_bias",
    "test_layer_normalization_2d_axis0_expanded",
    "test_log_example",
    "test_logsoftmax_axis_1_expanded",
    "test_lppool_2d_same_upper",
    "test_reduce_log_sum_asc_axes_expanded",
    "test_resize_downsample_scales_linear",
    "test_resize_downsample_sizes_nearest",
    "test_resize_upsample_scales_cubic_align_corners",
    "test_resize_upsample_sizes_nearest_ceil_half_pixel",
    "test_scatter_elements_with_axis",
    "test_softplus_example_expanded_ver18",
    "test_tan",
)
"""Cases that the simulator takes and computes otherwise when it is handed the operator as it is."""


@pytest.mark.slow
def test_no_case_of_the_sample_is_silently_wrong() -> None:
    pytest.importorskip("onnxruntime_qnn")
    names = [*list(node_tests.cases())[::EVERY], *ONCE_WRONG]
    found = {outcome.name: outcome for outcome in node_tests.run_all(dict.fromkeys(names), "a16w8")}
    assert len(found) > 80
    assert [o for o in found.values() if o.status not in ("exact", "refused")] == []
    assert all(o.reason for o in found.values() if o.status == "refused")
    assert sum(o.status == "exact" for o in found.values()) >= 0.5 * len(found)
    assert found["test_log_example"].status == found["test_softplus_example_expanded_ver18"].status == "exact"


def test_the_page_counts_and_names_what_is_to_be_mended() -> None:
    found = [
        Outcome("test_a", "a16w8", "Add", 13, "exact"),
        Outcome("test_a", "fp16", "Add", 13, "refused", "test_a: rank | 6"),
        Outcome("test_c", "fp16", "Log", 13, "wrong"),
    ]
    page = write_table.page(found)
    assert "| Add | 1 / 0 | 0 / 1 | rank / 6 |" in page and "- `test_c`, `fp16`: wrong" in page and "| exact | 1 | 0 |" in page


def test_what_was_measured_is_kept_and_named_operators_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run_all(names: list[str], precision: str, processes: int) -> Iterator[Outcome]:
        asked.append(names)
        yield from (Outcome(name, precision, "Add" if name == "a" else "Log", 13, "exact") for name in names)

    monkeypatch.setattr(node_tests, "cases", lambda: {"a": tmp_path, "b": tmp_path})
    monkeypatch.setattr(node_tests, "run_all", run_all)
    for again in ((), (), ("Add",)):
        assert [o.name for o in write_table.measured(tmp_path, "fp16", 1, again)] == ["a", "b"]
    assert asked == [["a", "b"], [], ["a"]]


def test_the_published_page_has_nothing_to_be_mended() -> None:
    page = write_table.PAGE.read_text("utf-8")
    assert "| wrong | 0 |" in page and "| crashed | 0 |" in page and "To be mended" not in page


@pytest.mark.parametrize(("got", "wanted", "expected"), [
    ([1.0, 2.0], [1.0, 2.0], 0.0),
    ([1.0, 1.0], [1.0, 2.0], 0.5),
    ([np.nan], [1.0], float("nan")),
    ([np.inf, 1.0], [np.inf, 1.0], 0.0),
    ([1.0, 1.0], [np.inf, 1.0], float("inf")),
])  # fmt: skip
def test_errors_are_shares_of_the_largest_magnitude(got: list[float], wanted: list[float], expected: float) -> None:
    found = node_tests._error(np.array(got, np.float32), np.array(wanted, np.float32))
    assert found == expected or (np.isnan(expected) and not found <= 1)
    assert node_tests._error(np.array([1]), np.array([2])) == float("inf") and isinstance(write_table.PAGE, Path)
