"""A run as JUnit XML: a suite for each device, a case for each check."""

from __future__ import annotations

from xml.etree import ElementTree as Xml  # it only writes here

from edgekit.report import Check, Report, Run
from edgekit.report.wording import printable


def render(run: Run) -> str:
    """The XML document. A check with an error is a `failure`, latency that is not comparable `skipped`, a device that failed an `error`."""
    root = Xml.Element("testsuites", name="edgekit test")
    for report in run.reports:
        root.append(_suite(report))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report) -> Xml.Element:
    name = printable(f"{report.bundle.name} on {report.device.name}")
    suite = Xml.Element("testsuite", name=name, hostname=printable(report.device.name), time=f"{sum(report.timings_s.values()):.3f}")
    properties = Xml.SubElement(suite, "properties")
    for key, value in _properties(report).items():
        Xml.SubElement(properties, "property", name=key, value=printable(value))
    if report.failure is not None:
        case = Xml.SubElement(suite, "testcase", classname=name, name="run")
        failed = Xml.SubElement(case, "error", type=report.failure.kind, message=printable(report.failure.message))
        failed.text = printable(report.failure.hint)
    for check in report.checks:
        suite.append(_case(name, check))
    cases = suite.findall("testcase")
    for attribute, tag in (("tests", None), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(tag is None or case.find(tag) is not None for case in cases)))
    return suite


def _properties(report: Report) -> dict[str, str]:
    values = {"bundle.sha256": report.bundle.sha256, "target": report.bundle.target, "precision": report.bundle.precision, "verdict": report.verdict}
    device = report.device
    values |= {"device.identity": device.identity, "device.os_build": device.os_build, "device.emulated": str(device.emulated).lower()}
    if report.latency is not None:
        values |= {f"latency.{p}_ns": f"{getattr(report.latency.summary, f'{p}_ns'):.0f}" for p in ("p50", "p90", "p99")}
    return values


def _case(class_name: str, check: Check) -> Xml.Element:
    case = Xml.Element("testcase", classname=class_name, name=printable(check.name))
    errors = [finding for finding in check.findings if finding.severity == "error"]
    others = [finding for finding in check.findings if finding.severity != "error"]
    for finding in errors[:1]:
        failure = Xml.SubElement(case, "failure", type=finding.code, message=printable(finding.message))
        failure.text = printable("\n".join(f"{error.message}\nhint: {error.hint}" if error.hint else error.message for error in errors))
    if not errors and any(finding.code == "not-comparable" for finding in others):
        Xml.SubElement(case, "skipped", message=printable("; ".join(finding.message for finding in others)))
    elif others:
        Xml.SubElement(case, "system-out").text = printable("\n".join(f"{finding.severity}: {finding.message}" for finding in others))
    return case
