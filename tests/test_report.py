"""Reports: what follows from the values, and each rendering read back by an independent reader."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import msgspec
import numpy as np
import pytest

from edgekit import latency, parity, report
from edgekit.errors import DeviceError, UsageError
from edgekit.job import Delegation, Result
from edgekit.latency import Key
from edgekit.parity import Finding
from edgekit.report import BundleFacts, Check, Comparison, DeviceFacts, Placement, Report, Run, html, judging, junit, schema, text
from edgekit.target import Tolerance
from edgekit.tensors import TensorSpec

SCHEMA = Path(__file__).parent.parent / "docs" / "report.schema.json"
BUNDLE = BundleFacts("lite0-android-arm64", "ab" * 32, "android-arm64", "w8a8", 5_430_112, 9_120_000)
DEVICE = DeviceFacts("adb:emulator-5554", "serial-1", "android 15", "AP3A.240905", "arm64-v8a", "Pixel", "Tensor")
KEY = Key("serial-1", "AP3A.240905", "litert")
NASTY = "<b>&\"'\x1b[31m\x00]]>[bold]x[/bold]é"


def compared(error=0.001, inputs="samples", against="host", name="scores"):
    rng = np.random.default_rng(3)
    reference = [{name: rng.normal(size=(1, 16)).astype(np.float32)} for _ in range(4)]
    other = [{name: sample[name] + np.float32(error)} for sample in reference]
    outputs = parity.compare_all(reference, other, reference_specs=[TensorSpec(name, (1, 16), "float32")])
    return Comparison(against, inputs, ("a.png", "b.png", "c.png", "d.png"), outputs, Tolerance(min_sqnr_db=40))


def measured(factor=1.0, emulated=False, key=KEY):
    samples = 4e6 * factor * np.exp(np.random.default_rng(5).normal(0, 0.02, 120))
    return latency.measure(Result("ok", latency_ns=tuple(int(s) for s in samples), runtime_version="2.3.0"), key, emulated=emulated)


def reported(comparisons=None, *, placement=None, measurement=None, baseline=None, device=DEVICE, bundle=BUNDLE, extra=()):
    comparisons = (compared(),) if comparisons is None else comparisons
    checks = judging.checks(comparisons, placement, measurement, baseline)
    conditions = report.Conditions("litert", "2.3.0", "0.1", "xnnpack", 4, retries=1, load_cold_ns=12_300_000, peak_memory_bytes=33_000_000)
    return Report(
        bundle=bundle,
        device=device,
        comparisons=tuple(comparisons),
        placement=placement,
        latency=measurement,
        baseline=baseline,
        conditions=conditions,
        checks=(*checks, *extra),
        timings_s={"push": 0.5, "run": 2.25},
    )


def full():
    placement = Placement("xnnpack", 60, 64, Delegation("TfLiteXNNPackDelegate", 58, 64, 3))
    baseline = latency.compare(measured(), measured(1.2))
    comparisons = (compared(), compared(0.5, against="reference"), compared(inputs="random"))
    return reported(comparisons, placement=placement, measurement=measured(1.2), baseline=baseline)


def broken():
    error = DeviceError(f"{NASTY} went away", "plug it in", device="x", reason="offline")
    return Report(bundle=BUNDLE, device=DeviceFacts("adb:gone"), failure=report.failure(error))


def run(*reports):
    return Run(edgekit="0.1.0", reports=reports)


# --- verdicts


def test_a_pass():
    found = reported()
    assert (found.verdict, found.passed, found.exit_code) == ("passed", True, 0)
    assert [check.name for check in found.checks] == ["inputs", "parity.host.samples.scores"]


def test_a_broken_bound_fails():
    found = reported([compared(0.5)])
    assert (found.verdict, found.passed, found.exit_code) == ("failed", False, 1)
    assert [finding.code for finding in found.findings] == ["sqnr"]


def test_random_inputs_alone_are_unproven():
    found = reported([compared(inputs="random")])
    assert (found.verdict, found.exit_code) == ("unproven", 0)
    assert reported([compared(), compared(inputs="random")]).verdict == "passed"


def test_nothing_checked_is_no_pass():
    found = Report(bundle=BUNDLE, device=DEVICE)
    assert (found.verdict, found.passed, found.exit_code) == ("not checked", False, 1)


def test_the_verdict_cannot_be_stated():
    assert msgspec.json.decode(msgspec.json.encode(reported([compared(0.5)])).replace(b'"failed"', b'"passed"'), type=Report).verdict == "failed"


def test_a_device_that_failed():
    assert (broken().verdict, broken().exit_code) == ("not checked", 5)
    assert run(reported(), broken()).exit_code == 5
    assert run(broken(), reported([compared(0.5)])).exit_code == 1
    assert run(reported(), reported()).exit_code == 0


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        (Delegation("XNNPACK", 60, 64), []),
        (Delegation("TfLiteXNNPackDelegate", 64, 64), []),
        (Delegation("xnnpack", 59, 64), ["silent-fallback"]),
        (Delegation("xnnpack", 0, 64), ["silent-fallback"]),
        (Delegation("", 0, 64), ["silent-fallback"]),
        (Delegation("nnapi", 64, 64), ["other-accelerator"]),
        (None, ["placement-unknown"]),
    ],
)
def test_placement(given, codes):
    findings = judging.judge_placement(Placement("xnnpack", 60, 64, given))
    assert [finding.code for finding in findings] == codes
    assert all((finding.severity == "warning") == (given is None) for finding in findings)


def test_a_plan_without_accelerator_has_nothing_to_miss():
    older = judging.judge_placement(Placement("xnnpack", 1, 2, Delegation("xnnpack", 1, 2), "LOG needs a newer one"))
    assert [(finding.severity, finding.code) for finding in older] == [("info", "older-runtime")]
    assert judging.judge_placement(Placement("xnnpack", 0, 64)) == ()


def test_latency_that_is_not_comparable_fails_nothing():
    found = reported(measurement=measured(emulated=True))
    assert found.verdict == "passed"
    assert [(finding.severity, finding.code) for finding in found.findings] == [("info", "not-comparable")]


@pytest.mark.parametrize(("factor", "codes", "severity"), [(1.2, ["slower"], "error"), (1.0, [], ""), (0.8, [], "")])
def test_baseline(factor, codes, severity):
    findings = judging.judge_baseline(latency.compare(measured(), measured(factor)))
    assert [finding.code for finding in findings] == codes
    assert all(finding.severity == severity for finding in findings)


def test_another_device_is_said_not_failed():
    other = measured(key=msgspec.structs.replace(KEY, device="serial-2"))
    findings = judging.judge_baseline(latency.compare(other, measured()))
    assert [(finding.severity, finding.code) for finding in findings] == [("warning", "not-comparable")]


def test_the_baseline_of_the_same_device_is_found():
    other = msgspec.structs.replace(KEY, device="serial-2")
    earlier = run(reported(measurement=measured(key=other)), reported(measurement=measured(1.1)))
    assert report.baseline_for(earlier, KEY) == measured(1.1)
    assert report.baseline_for(earlier, msgspec.structs.replace(KEY, device="new")).key == other
    assert report.baseline_for(run(reported()), KEY) is None


# --- file


def test_the_published_schema_is_the_current_one():
    published = SCHEMA.read_text("utf-8")
    assert published == schema.render(), "write it anew: python -m edgekit.report.schema > docs/report.schema.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(published))


@pytest.mark.parametrize("make", [reported, full, broken])
def test_the_file_is_valid_and_reads_back(tmp_path, make):
    written = run(make())
    document = report.to_json(written)
    jsonschema.validate(json.loads(document), json.loads(SCHEMA.read_text("utf-8")))
    (tmp_path / "run.json").write_text(document, "utf-8")
    assert report.read(tmp_path / "run.json") == written
    assert json.loads(document)["reports"][0]["verdict"] == make().verdict


def test_non_finite_figures_are_valid_json():
    bad = parity.compare("y", [np.array([1.0, 2.0])], [np.array([np.nan, np.inf])])
    comparison = Comparison("host", "samples", ("a",), (bad,), Tolerance())
    document = json.loads(report.to_json(run(reported([comparison]))), parse_constant=lambda name: pytest.fail(name))
    assert document["reports"][0]["comparisons"][0]["outputs"][0]["worst"]["other"] is None
    jsonschema.validate(document, json.loads(SCHEMA.read_text("utf-8")))


def test_files_that_are_no_report(tmp_path):
    file = tmp_path / "run.json"
    with pytest.raises(UsageError, match="cannot be read"):
        report.read(file)
    nested = f'{{"schema": 1, "new": {"[" * 100_000}{"]" * 100_000}}}'
    for content in ("", "[]", '{"schema": 1}', '{"schema": 1, "edgekit": "0", "reports": [{}]}', "\x00", nested):
        file.write_text(content)
        with pytest.raises(UsageError, match="not a report"):
            report.read(file)
    file.write_text('{"schema": 2, "edgekit": "9", "reports": "new"}')
    with pytest.raises(UsageError, match="report schema 2, this edgekit reads up to 1"):
        report.read(file)


# --- text


def test_text_tells_the_essentials():
    shown = text.render(run(full()), width=120)
    for needle in (
        "FAILED  lite0-android-arm64 on adb:emulator-5554",
        "5.43 MB (5,430,112 B)",
        "9.12 MB (9,120,000 B)",
        "device against host artifact, your samples (4)",
        "random inputs (4)",
        "n 120",
        "p99",
        "slower: median 1.200 x",
        "planned 60 of 64 on xnnpack; reported 58 of 64 on TfLiteXNNPackDelegate in 3 parts",
        "error [silent-fallback]",
        "error [sqnr] scores: SQNR 6.60 dB, bound 40 dB  (parity.reference.samples.scores)",
        "hint: worst at sample",
    ):
        assert needle in shown


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_text_stays_within_the_terminal(width):
    long = reported(bundle=msgspec.structs.replace(BUNDLE, name="n" * 90), extra=(Check("x", (Finding("error", "long", "word " * 50, "w" * 300),)),))
    shown = text.render(run(full(), long), width=width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "scores" in shown


def test_color_only_when_asked():
    assert "\x1b" not in text.render(run(full()))
    assert "\x1b[31m\x1b[1mFAILED" in text.render(run(full()), color=True)


def test_what_a_device_says_reaches_no_terminal_unescaped():
    device = msgspec.structs.replace(DEVICE, name=NASTY, model=NASTY)
    shown = text.render(run(reported(device=device), broken()))
    assert "\x1b" not in shown
    assert "\x00" not in shown
    assert "\\x1b[31m" in shown
    assert "[bold]x[/bold]é" in shown


def test_identical_and_zero_outputs_are_named_so():
    zero = parity.compare("z", [np.zeros(4)], [np.full(4, 0.1)])
    same = parity.compare("same", [np.ones(4)], [np.ones(4)])
    lost = parity.compare("lost", [np.ones(4)], [np.ones(3)])
    shown = text.render(run(reported([Comparison("host", "samples", ("a",), (zero, same, lost), Tolerance())])))
    assert re.search(r"z +zero ref\.", shown)
    assert re.search(r"same +identical", shown)
    assert "shape [3] in sample 0" in shown


# --- JUnit


def test_junit_has_a_case_for_each_check():
    suites = ElementTree.fromstring(junit.render(run(full(), reported(measurement=measured(emulated=True)), broken())))
    assert [suites.get(k) for k in ("tests", "failures", "errors", "skipped")] == ["11", "3", "1", "1"]
    first = suites[0]
    cases = {case.get("name"): case for case in first.findall("testcase")}
    assert list(cases) == [check.name for check in full().checks]
    assert cases["parity.reference.samples.scores"].find("failure").get("type") == "sqnr"
    assert cases["placement"].find("failure").get("type") == "silent-fallback"
    assert cases["parity.host.samples.scores"].find("failure") is None
    properties = {p.get("name"): p.get("value") for p in first.find("properties")}
    assert properties["verdict"] == "failed"
    assert int(properties["latency.p50_ns"]) == pytest.approx(4.8e6, rel=0.01)


def test_junit_escapes_everything():
    nasty = Check(NASTY, (Finding("error", "bad", NASTY, NASTY), Finding("error", "bad", "second")))
    device = msgspec.structs.replace(DEVICE, name=NASTY, identity=NASTY)
    root = ElementTree.fromstring(junit.render(run(reported(device=device, extra=(nasty,)), broken())))
    failure = root.find(".//failure")
    assert failure.get("message").startswith("<b>&\"'\\x1b[31m\\x00]]>")
    assert "second" in failure.text


# --- HTML


class Reader(HTMLParser):
    """Tags, in order, and all text; fails on a tag that is closed out of order."""

    VOID = ("meta", "br", "circle", "line")

    def __init__(self, document):
        super().__init__()
        self.tags, self.open, self.words, self.references = [], [], [], []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_html_is_self_contained_and_tells_the_essentials():
    page = Reader(html.render(run(full(), broken())))
    assert page.references == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.tags.count("circle") == 120
    words = "".join(page.words)
    for needle in ("FAILED", "NOT CHECKED", "5.43 MB (5,430,112 B)", "[silent-fallback]", "scores: SQNR", "[DeviceError]", "edgekit 0.1.0"):
        assert needle in words


def test_html_escapes_everything():
    device = msgspec.structs.replace(DEVICE, name=NASTY, model=NASTY)
    nasty = Check(NASTY, (Finding("error", "bad", NASTY, NASTY),))
    bundle = msgspec.structs.replace(BUNDLE, name=NASTY)
    page = Reader(html.render(run(reported([compared(name=NASTY)], device=device, bundle=bundle, extra=(nasty,)))))
    assert page.tags.count("b") == 1  # the severity's own
    assert "".join(page.words).count("<b>&\"'\\x1b[31m\\x00]]>") >= 6


def test_a_long_series_is_thinned_in_the_plot():
    samples = tuple(int(s) for s in np.random.default_rng(0).normal(4e6, 1e4, 50_000))
    long = latency.measure(Result("ok", latency_ns=samples), KEY, emulated=False)
    assert 500 <= html.plot(long).count("<circle") <= 1000
    one = latency.measure(Result("ok", latency_ns=(7,)), KEY, emulated=False)
    assert html.plot(one).count("<circle") == 1


def test_more_stack_than_planned_fails():
    assert not judging.judge_stack(4096, 4096)
    (check,) = (c for c in judging.checks((compared(),), stack=(5000, 4096)) if c.name == "stack")
    assert not check.passed and "5,000" in check.findings[0].message
