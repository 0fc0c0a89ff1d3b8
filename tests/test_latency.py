"""Statistics against scipy, verdicts on synthetic series, and false-positive rates by seeded simulation."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest
from scipy import stats

from edgekit import latency
from edgekit.job import Result
from edgekit.latency import Key, Latency, Limits, series

KEY = Key("serial-1", "AP3A.240905", "litert")


def clean(seed, n=120, median=4e6, sigma=0.02):
    """A device at rest: a floor with a skewed tail and a few interruptions."""
    rng = np.random.default_rng(seed)
    values = median * np.exp(rng.normal(0, sigma, n))
    late = rng.random(n) < 0.03
    values[late] *= rng.uniform(1.2, 2.5, late.sum())
    return values


def run(values, key=KEY, **others):
    result = Result("ok", latency_ns=tuple(int(v) for v in values), **others)
    return latency.measure(result, key, emulated=False)


def correlated(rng, n, r=0.6, sigma=0.02):
    noise = np.empty(n)
    noise[0] = rng.normal()
    for i in range(1, n):
        noise[i] = r * noise[i - 1] + np.sqrt(1 - r * r) * rng.normal()
    return 4e6 * np.exp(sigma * noise)


def test_figures_by_hand():
    summary = latency.summarize([5, 1, 3, 2, 4])
    assert (summary.n, summary.p50_ns, summary.min_ns, summary.max_ns) == (5, 3, 1, 5)
    assert summary.p90_ns == pytest.approx(4.6)
    assert summary.p99_ns == pytest.approx(4.96)
    assert (summary.iqr_ns, summary.mad_ns) == (2, 1)


def test_an_empty_series_is_an_error():
    with pytest.raises(ValueError, match="at least one sample"):
        latency.summarize([])


def test_the_same_series_gives_the_same_figures():
    values = [int(v) for v in clean(1)]
    assert latency.summarize(values) == latency.summarize(values)


@pytest.mark.parametrize("seed", range(5))
def test_mann_whitney_matches_scipy(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 30, 40).astype(float), rng.integers(3, 33, 55).astype(float)
    expected = stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert series.mann_whitney(first, second, (40, 55)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_trend_matches_scipy(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=50) + 0.02 * np.arange(50)
    slope, p = series.trend(values)
    assert slope == pytest.approx(stats.theilslopes(values)[0] * 49)
    assert p == pytest.approx(stats.kendalltau(np.arange(50), values, method="asymptotic").pvalue, rel=0.1)


def test_ranks_match_scipy():
    values = np.random.default_rng(0).integers(0, 9, 50).astype(float)
    assert np.array_equal(series.ranks(values), stats.rankdata(values))


def test_median_interval_matches_a_plain_bootstrap():
    values = clean(3, n=101)
    plain = np.median(np.random.default_rng(0).choice(values, (4000, 101)), axis=1)
    low, high = series.interval(series.median_draws(values, 101, 0), 0.95)
    assert (low, high) == pytest.approx(np.quantile(plain, (0.025, 0.975)), rel=2e-3)


def test_the_interval_covers_the_true_median():
    covered = 0
    for seed in range(400):
        values = 4e6 * np.exp(np.random.default_rng(seed).normal(0, 0.05, 100))
        low, high = series.interval(series.median_draws(values, 100, seed), 0.95)
        covered += low <= 4e6 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_correlated_samples_count_for_less():
    rng = np.random.default_rng(4)
    sizes = [series.effective_size(correlated(rng, 400)) for _ in range(20)]
    assert np.mean(sizes) == pytest.approx(400 * 0.4 / 1.6, rel=0.25)
    assert np.mean([series.effective_size(clean(s, 400)) for s in range(20)]) > 350


def test_clean_series_are_comparable():
    refused = [run(clean(seed, n)).reasons for seed in range(60) for n in (30, 100, 400)]
    assert sum(map(bool, refused)) <= 0.01 * len(refused), [reason for reason in refused if reason]


def test_a_drifting_series_is_refused():
    for seed in range(50):
        reasons = run(clean(seed) * np.linspace(1, 1.15, 120)).reasons
        assert len(reasons) == 1
        assert reasons[0].startswith("drift: +1")


def test_a_throttled_series_is_refused():
    for seed in range(50):
        values = clean(seed)
        values[70:] *= 1.6
        assert run(values).reasons


def test_a_bimodal_series_is_refused():
    for seed in range(50):
        slow = np.random.default_rng(1000 + seed).random(120) < 0.4
        reasons = run(np.where(slow, 1.8, 1.0) * clean(seed)).reasons
        assert len(reasons) == 1
        assert reasons[0].startswith("two modes, ")


@pytest.mark.parametrize("draw", ["normal", "uniform", "exponential", "lognormal"])
def test_one_mode_is_not_called_two(draw):
    rng = np.random.default_rng(5)
    shapes = {"normal": rng.normal, "uniform": rng.uniform, "exponential": rng.exponential, "lognormal": lambda size: rng.lognormal(0, 0.5, size)}
    assert sum(bool(series.two_modes(10 + shapes[draw](size=100))[0]) for _ in range(200)) <= 4


def test_modes_closer_than_the_effect_do_not_matter():
    slow = np.random.default_rng(6).random(200) < 0.5
    assert run(np.where(slow, 1.03, 1.0) * clean(6, 200, sigma=0.003)).reasons == ()


def test_a_noisy_series_is_refused():
    assert run(4e6 * np.exp(np.random.default_rng(7).normal(0, 0.5, 200))).reasons[0].startswith("noise: ")


def test_a_cold_start_is_refused():
    values = clean(8)
    values[:12] *= 1.5
    assert any("not warmed up" in reason for reason in run(values).reasons)


def test_too_few_samples_are_refused():
    assert run(clean(9, 19)).reasons == ("too few samples: 19, at least 20 are needed",)
    assert run(clean(9, 1)).summary.p50_ns > 0


def test_a_constant_series_is_fine():
    measured = run(np.full(100, 4e6))
    assert measured.comparable
    assert measured.summary.interval_ns == (4e6, 4e6)
    assert latency.compare(measured, measured).outcome == "same"


def test_emulated_devices_are_never_comparable():
    result = Result("ok", latency_ns=tuple(int(v) for v in clean(1)))
    measured = latency.measure(result, KEY, emulated=True)
    assert measured.reasons == ("the device is emulated: its time is not a device's",)
    assert latency.compare(measured, measured).outcome == "not comparable"


def test_heat_and_clocks_are_judged():
    hot = run(clean(1), temperatures_before={"cpu": 41_000, "odd": -40_000}, temperatures_after={"cpu": 92_500, "odd": 99})
    assert hot.reasons == ("heat: cpu went from 41 to 92 degrees Celsius",)
    slowed = run(clean(1), clocks_before={"cpu0": 1_800_000, "cpu7": 2_840_000}, clocks_after={"cpu0": 1_800_000, "cpu7": 1_420_000})
    assert slowed.reasons == ("clock: the fastest core went from 2.84 to 1.80 GHz",)
    warm = {"temperatures_before": {"cpu": 41_000}, "temperatures_after": {"cpu": 58_000}}
    assert run(clean(1), **warm, clocks_before={"cpu0": 600_000}, clocks_after={"cpu0": 1_800_000}).comparable


@functools.cache
def baseline(seed):
    return run(clean(2 * seed))


def outcomes(shift, seeds=range(100)):
    found = [latency.compare(baseline(seed), run(clean(2 * seed + 1) * shift)).outcome for seed in seeds]
    return {outcome: found.count(outcome) / len(found) for outcome in set(found)}


def test_no_shift_is_never_a_verdict():
    found = outcomes(1.0)
    assert found.get("slower", 0) + found.get("faster", 0) == 0
    assert found["same"] > 0.95


def test_three_percent_is_below_the_effect_that_counts():
    found = outcomes(1.03)
    assert found.get("slower", 0) == 0
    assert found["same"] > 0.9


def test_ten_percent_is_found_both_ways():
    assert outcomes(1.10)["slower"] > 0.95
    assert outcomes(1 / 1.10)["faster"] > 0.95


def test_a_shift_of_exactly_the_effect_is_rarely_a_verdict():
    assert outcomes(1.05).get("slower", 0) <= 0.03


def test_correlated_noise_does_not_fake_a_verdict():
    rng = np.random.default_rng(11)
    found = [latency.compare(run(correlated(rng, 120, sigma=0.04)), run(correlated(rng, 120, sigma=0.04))) for _ in range(60)]
    assert sum(c.outcome in ("faster", "slower") for c in found) <= 1


def test_a_smaller_effect_finds_a_smaller_shift():
    before, after = run(clean(1, 400)), run(clean(2, 400) * 1.03)
    assert latency.compare(before, after, limits=Limits(effect=0.01)).outcome == "slower"


def test_too_noisy_for_a_verdict_is_inconclusive():
    before, after = run(clean(1, 30, sigma=0.12)), run(clean(2, 30, sigma=0.12) * 1.06)
    compared = latency.compare(before, after)
    assert compared.outcome == "inconclusive"
    assert compared.interval[0] < compared.ratio < compared.interval[1]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("device", "serial-2", "another device: serial-1 before, serial-2 now"),
        ("os_build", "", "another os build: AP3A.240905 before, unknown now"),
        ("runtime", "onnxruntime", "another runtime"),
        ("accelerator", "gpu", "another accelerator"),
        ("threads", 4, "another threads"),
    ],
)
def test_other_circumstances_are_not_compared(field, value, text):
    compared = latency.compare(run(clean(1)), run(clean(1), key=msgspec.structs.replace(KEY, **{field: value})))
    assert compared.outcome == "not comparable"
    assert compared.reasons[0].startswith(text)


def test_a_refused_side_is_named():
    compared = latency.compare(run(clean(1) * np.linspace(1, 1.3, 120)), run(clean(1)))
    assert compared.outcome == "not comparable"
    assert compared.reasons[0].startswith("baseline: drift")


def test_another_runtime_version_is_compared_and_said():
    before, after = run(clean(1), runtime_version="2.2.0"), run(clean(2), runtime_version="2.3.0")
    compared = latency.compare(before, after)
    assert (compared.outcome, compared.reasons) == ("same", ("the runtime's version changed from 2.2.0 to 2.3.0",))


def test_a_measurement_survives_json():
    measured = run(clean(1))
    assert msgspec.json.decode(msgspec.json.encode(measured), type=Latency) == measured
