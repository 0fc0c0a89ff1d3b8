"""Figures against hand-computed cases and plain numpy; verdicts at, above and below each bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgekit import parity
from edgekit.parity import OutputParity
from edgekit.target import Tolerance
from edgekit.tensors import TensorSpec, quantize

Q = TensorSpec("y", (1, 64), "int8", scale=0.05, zero_point=3)
DEVICE = Tolerance(min_sqnr_db=40.0, min_top1=0.99)


def codes(findings, severity="error"):
    return [finding.code for finding in findings if finding.severity == severity]


def batch(seed, shape=(1, 64), count=6):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(count)]


def test_figures_by_hand():
    found = parity.compare("y", [np.array([[3.0, 4.0]]), np.array([[0.0, 2.0]])], [np.array([[3.0, 4.5]]), np.array([[0.0, 1.0]])])
    assert found.max_abs == 1.0
    assert found.mean_abs == 1.5 / 4
    assert found.sqnr_db == pytest.approx(10 * math.log10(29 / 1.25))
    assert found.cosine == pytest.approx((9 + 18 + 2) / math.sqrt(29) / math.sqrt(9 + 20.25 + 1))
    assert (found.worst.sample, found.worst.index, found.worst.reference, found.worst.other) == (1, (0, 1), 2.0, 1.0)
    assert found.worst_sample == 1
    assert found.worst_sqnr_db == pytest.approx(10 * math.log10(14.5 / 1.0))
    assert (found.peak, found.span, found.identical) == (4.0, 4.0, False)


@settings(max_examples=40)
@given(hnp.arrays(np.float32, (3, 2, 5), elements=st.floats(-100, 100, width=32)), st.integers(0, 2**31))
def test_figures_match_plain_numpy(reference, seed):
    other = reference + np.random.default_rng(seed).normal(size=reference.shape).astype(np.float32)
    found = parity.compare("y", list(reference), list(other))
    error = np.abs(other.astype(np.float64) - reference)
    assert found.max_abs == error.max()
    assert found.mean_abs == pytest.approx(error.mean(), rel=1e-12)
    assert error[found.worst.sample][found.worst.index] == error.max()
    if np.any(reference):
        assert found.sqnr_db == pytest.approx(10 * np.log10((reference.astype(np.float64) ** 2).sum() / (error**2).sum()))


def test_identical_bytes_pass_every_bound():
    values = batch(1)
    found = parity.compare("y", values, [v.copy() for v in values])
    assert found.identical
    assert found.max_abs == 0
    assert found.sqnr_db is None
    assert parity.judge([found], Tolerance(min_sqnr_db=200, min_cosine=1.0, min_top1=1.0, max_abs=0.0)) == ()


def test_equal_values_in_other_bytes_are_not_called_identical():
    found = parity.compare("y", [np.array([0.0, 1.0])], [np.array([-0.0, 1.0])])
    assert not found.identical
    assert found.max_abs == 0


def test_a_bound_that_is_met_exactly_passes():
    found = parity.compare("y", [np.array([2.0, 0.0])], [np.array([2.0, 0.5])])
    assert parity.judge([found], Tolerance(max_abs=0.25)) == ()
    assert codes(parity.judge([found], Tolerance(max_abs=0.2499))) == ["max-abs"]
    assert parity.judge([found], Tolerance(max_abs=0.5, relative=False)) == ()
    assert codes(parity.judge([found], Tolerance(max_abs=0.4999, relative=False))) == ["max-abs"]
    assert parity.judge([found], Tolerance(min_sqnr_db=found.sqnr_db, min_cosine=found.cosine)) == ()
    tighter = Tolerance(min_sqnr_db=np.nextafter(found.sqnr_db, 99), min_cosine=np.nextafter(found.cosine, 1))
    assert codes(parity.judge([found], tighter)) == ["sqnr", "cosine"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["reference", "other"])
def test_a_single_non_finite_value_fails(bad, side):
    reference, other = batch(2, (1, 4, 4)), batch(2, (1, 4, 4))
    {"reference": reference, "other": other}[side][3][0, 2, 1] = bad
    found = parity.compare("y", reference, other)
    assert (found.non_finite, found.worst.sample, found.worst.index) == (1, 3, (0, 2, 1))
    findings = parity.judge([found], Tolerance())
    assert codes(findings) == ["non-finite"]
    assert str(bad) in findings[0].message
    assert "sample 3 [0, 2, 1]" in findings[0].message
    assert ("source model" if side == "reference" else "half precision") in findings[0].hint


def test_values_whose_squares_overflow_are_far_off_not_exact():
    reference, huge = np.array([1.0, 2.0]), np.array([1e300, -1e300])
    for found in (parity.compare("y", [reference], [huge]), parity.compare("y", [huge], [-huge])):
        assert found.sqnr_db is not None
        assert found.sqnr_db < -3000


def test_nan_on_both_sides_fails_too():
    values = [np.array([np.nan, 1.0])]
    assert codes(parity.judge([parity.compare("y", values, values)], Tolerance())) == ["non-finite"]


def test_zero_reference_is_said_and_judged_by_max_abs():
    zeros = [np.zeros((1, 4), np.float32)]
    same = parity.judge([parity.compare("y", zeros, zeros)], DEVICE)
    assert (codes(same), codes(same, "warning")) == ([], ["reference-zero"])
    other = [np.full((1, 4), 0.01, np.float32)]
    found = parity.compare("y", zeros, other)
    assert (found.sqnr_db, found.cosine) == (None, None)
    assert codes(parity.judge([found], DEVICE)) == ["max-abs"]
    assert codes(parity.judge([found], Tolerance(min_sqnr_db=40, max_abs=0.02))) == []
    stepped = parity.compare("y", zeros, [np.full((1, 4), 4, np.int8)], other_spec=TensorSpec("y", (1, 4), "int8", 0.01, 3))
    assert codes(parity.judge([stepped], DEVICE)) == []


def test_zero_output_against_a_real_reference_fails():
    found = parity.compare("y", batch(3), [np.zeros((1, 64), np.float32)] * 6)
    assert codes(parity.judge([found], Tolerance(min_cosine=0.5, min_sqnr_db=1))) == ["sqnr", "cosine"]


def test_integers_are_compared_in_real_values_each_by_its_own_scale():
    real = batch(4)
    coarse, fine = TensorSpec("y", (1, 64), "uint8", 0.05, 128), TensorSpec("y", (1, 64), "int16", 0.0002, 0)
    found = parity.compare("y", [quantize(r, fine) for r in real], [quantize(r, coarse) for r in real], reference_spec=fine, other_spec=coarse)
    assert found.max_abs <= 0.025 + 0.0001 + 1e-9
    assert found.step == 0.05
    raw = parity.compare("y", [quantize(r, fine) for r in real], [quantize(r, coarse) for r in real])
    assert raw.max_abs > 100


def test_wide_integers_keep_their_last_bit():
    assert parity.compare("id", [np.array([2**40 + 1])], [np.array([2**40])]).max_abs == 1.0


def drifted(steps, seed=5):
    reference = [quantize(real, Q) for real in batch(seed)]
    rng = np.random.default_rng(seed)
    other = [np.clip(r + rng.integers(-steps, steps + 1, r.shape), -128, 127).astype(np.int8) for r in reference]
    return parity.compare("y", reference, other, reference_spec=Q, other_spec=Q, classes=False)


def test_one_step_of_drift_passes_and_two_do_not():
    one, two = drifted(1), drifted(2)
    assert one.sqnr_db < 40
    assert one.max_abs == pytest.approx(0.05)
    assert codes(parity.judge([one], DEVICE)) == []
    assert codes(parity.judge([one], DEVICE), "info") == ["one-step"]
    assert codes(parity.judge([two], DEVICE)) == ["sqnr"]


def test_a_step_of_a_float_output_can_be_stated():
    reference = batch(6)
    other = [np.round(r / 0.05).astype(np.float32) * np.float32(0.05) for r in reference]
    assert codes(parity.judge([parity.compare("y", reference, other, classes=False)], DEVICE)) == ["sqnr"]
    assert codes(parity.judge([parity.compare("y", reference, other, step=0.05, classes=False)], DEVICE)) == []


def test_one_step_excuses_nothing_when_the_output_spans_few_steps():
    stored = [np.tile(np.array([0, 1, 2, 3], np.int8), (1, 16))]
    off = [np.roll(stored[0], 1).clip(0, 3).astype(np.int8)]
    off[0] = np.where(stored[0] > 0, stored[0] - 1, 1).astype(np.int8)
    spec = TensorSpec("y", (1, 64), "int8", 1.0, 0)
    found = parity.compare("y", stored, off, reference_spec=spec, other_spec=spec)
    assert found.max_abs == 1.0
    assert codes(parity.judge([found], DEVICE)) == ["sqnr"]


def test_mismatches_name_both_sides():
    reference = batch(7)
    cases = {
        "shape [1, 63] in sample 0": [r[:, :63] for r in reference],
        "5 samples, but the reference has 6": reference[:5],
        "dtype float64 in sample 0, declared float32": [r.astype(np.float64) for r in reference],
    }
    for text, other in cases.items():
        found = parity.compare("y", reference, other, other_spec=TensorSpec("y", (1, 64), "float32"))
        assert text in found.mismatch
        assert codes(parity.judge([found], Tolerance())) == ["output-mismatch"]
    assert parity.compare("y", [], []).mismatch == "no samples"
    assert "no elements" in parity.compare("y", [np.zeros((0, 4))], [np.zeros((0, 4))]).mismatch


def outputs(seed, shapes):
    rng = np.random.default_rng(seed)
    return [{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(4)]


def test_swapped_outputs_of_one_shape_are_recognized():
    specs = [TensorSpec("a", (1, 8), "float32"), TensorSpec("b", (1, 8), "float32"), TensorSpec("c", (1, 8), "float32")]
    reference = outputs(8, {"a": (1, 8), "b": (1, 8), "c": (1, 8)})
    device = [{"a": s["b"] * np.float32(1.0001), "b": s["a"], "c": s["c"]} for s in reference]
    found = parity.compare_all(reference, device, reference_specs=specs)
    assert [p.swapped_with for p in found] == ["b", "a", ""]
    findings = parity.judge(found, DEVICE)
    assert codes(findings) == ["outputs-swapped", "outputs-swapped"]
    assert "outputs look swapped" in findings[0].message


def test_swapped_outputs_of_different_shapes_are_recognized():
    specs = [TensorSpec("boxes", (1, 10, 4), "float32"), TensorSpec("scores", (1, 10), "float32")]
    reference = outputs(9, {"boxes": (1, 10, 4), "scores": (1, 10)})
    device = [{"boxes": s["scores"], "scores": s["boxes"]} for s in reference]
    findings = parity.judge(parity.compare_all(reference, device, reference_specs=specs), DEVICE)
    assert codes(findings) == ["outputs-swapped", "outputs-swapped"]


def test_two_equally_wrong_outputs_are_not_called_swapped():
    specs = [TensorSpec("a", (1, 8), "float32"), TensorSpec("b", (1, 8), "float32")]
    shapes = {"a": (1, 8), "b": (1, 8)}
    found = parity.compare_all(outputs(10, shapes), outputs(11, shapes), reference_specs=specs)
    assert [p.swapped_with for p in found] == ["", ""]
    assert "sqnr" in codes(parity.judge(found, DEVICE))


def test_a_missing_output_lists_what_there_is():
    found = parity.compare_all([{"a": np.ones(2)}], [{"b": np.ones(2)}], reference_specs=[TensorSpec("a", (2,), "float64")])
    assert found[0].mismatch == "missing; there is b"


def test_float_reference_against_quantized_outputs():
    real = [{"y": values} for values in batch(12)]
    stored = [{"y": quantize(sample["y"], Q)} for sample in real]
    (found,) = parity.compare_all(real, stored, reference_specs=[TensorSpec("y", (1, 64), "float32")], other_specs=[Q])
    assert found.sqnr_db == pytest.approx(10 * math.log10(1 / (0.05**2 / 12)), abs=1.0)  # uniform rounding noise of one step


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def test_top_agreement_of_probabilities():
    reference = [softmax(values * 3) for values in batch(13, (1, 10), 8)]
    other = [values.copy() for values in reference]
    best, second = np.argsort(other[0][0])[[-1, -2]]
    other[0][0, [best, second]] = other[0][0, [second, best]]
    found = parity.compare("probabilities", reference, other)
    assert (found.classes, found.top1, found.top5) == ("yes", 7 / 8, 1.0)
    assert codes(parity.judge([found], Tolerance(min_top1=0.9))) == ["top1"]
    assert codes(parity.judge([found], Tolerance(min_top1=7 / 8))) == []


def test_ties_of_quantized_scores_agree():
    reference, other = [np.array([[0.2, 0.4, 0.4]])], [np.array([[0.2, 0.39, 0.41]])]
    assert parity.compare("p", reference, other).top1 == 1.0
    assert parity.compare("p", other, reference).top1 == 1.0


def test_what_only_looks_like_class_scores_does_not_fail_by_top1():
    reference = batch(14, (1, 12), 4)
    other = [values.copy() for values in reference]
    best, second = np.argsort(other[0][0])[[-1, -2]]
    other[0][0, [best, second]] = other[0][0, [second, best]]
    guessed = parity.compare("y", reference, other)
    assert (guessed.classes, guessed.top1) == ("guessed", 0.75)
    assert codes(parity.judge([guessed], Tolerance(min_top1=0.9)), "warning") == ["top1"]
    stated = parity.compare("y", reference, other, classes=True)
    assert codes(parity.judge([stated], Tolerance(min_top1=0.9))) == ["top1"]
    unit = [values / np.linalg.norm(values) for values in reference]
    assert parity.compare("embedding", unit, unit).classes == "no"
    assert parity.compare("map", batch(1, (1, 4, 4)), batch(1, (1, 4, 4))).top1 is None


def test_one_bad_sample_in_a_good_batch_is_named():
    reference = batch(15, count=200)
    other = [values + np.float32(1e-3) for values in reference]
    other[17] = other[17] + np.float32(0.5)
    found = parity.compare("y", reference, other, classes=False)
    findings = parity.judge([found], Tolerance(min_sqnr_db=20))
    assert (codes(findings), codes(findings, "warning")) == ([], ["sample-outlier"])
    assert "sample 17" in findings[0].message


def test_random_inputs_alone_are_not_a_proof():
    assert [finding.code for finding in parity.judge_inputs(["random"])] == ["random-only"]
    assert parity.judge_inputs(["random", "samples"]) == ()


def test_divergence_on_structured_inputs_only():
    """A net that saturates: both sides agree on noise, and part on samples with real activation ranges."""

    def attend(values, ceiling):
        return np.minimum(values * values, ceiling)

    noise, images = batch(16), [values * 40 for values in batch(17)]
    on_noise = parity.compare("y", [attend(v, np.inf) for v in noise], [attend(v, 500) for v in noise], classes=False)
    on_images = parity.compare("y", [attend(v, np.inf) for v in images], [attend(v, 500) for v in images], classes=False)
    assert codes(parity.judge([on_noise], DEVICE)) == []
    assert codes(parity.judge([on_images], DEVICE)) == ["sqnr"]


def test_values_are_json():
    import msgspec

    found = parity.compare("y", [np.array([1.0, np.nan])], [np.array([1.0, 2.0])])
    assert msgspec.json.decode(msgspec.json.encode(found), type=OutputParity).worst.reference is None


def test_a_reference_that_is_all_but_zero_is_judged_by_max_abs() -> None:
    reference, other = [np.array([2e-7, 1e-7], np.float32)], [np.array([1e-7, 1e-7], np.float32)]
    found = parity.judge([parity.compare("y", reference, other)], Tolerance(min_sqnr_db=60.0))
    assert [(finding.severity, finding.code) for finding in found] == [("warning", "reference-zero")]
    far = parity.judge([parity.compare("y", reference, [np.array([2e-7, 1e-3], np.float32)])], Tolerance(min_sqnr_db=60.0))
    assert ("error", "max-abs") in [(finding.severity, finding.code) for finding in far]
