"""Device tests as ordinary pytest items: `pytest model.edgekit --edgekit-device virtual:android-arm64` makes each check of a bundle one test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from edgekit.parity import Finding
    from edgekit.report import Check, Report
    from edgekit.virtual.android import RunningDevice


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--edgekit-device` and `--edgekit-runs`."""
    group = parser.getgroup("edgekit", "prove .edgekit bundles on devices")
    group.addoption("--edgekit-device", action="append", default=[], metavar="D", help="device to test collected bundles on; repeatable")
    group.addoption("--edgekit-runs", type=int, default=0, metavar="N", help="timed runs (default 0: values only)")


@pytest.fixture
def virtual_android() -> Iterator[Callable[..., RunningDevice]]:
    """`android.start`: a function `(options, faults)` that starts virtual Android devices, which end with the test."""
    from edgekit.virtual import android

    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **named: stack.enter_context(android.device(*arguments, **named))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect bundles, when a device is given."""
    if file_path.suffix != ".edgekit" or not parent.config.getoption("--edgekit-device"):
        return None
    return BundleFile.from_parent(parent, path=file_path)


class BundleFile(pytest.File):
    """A bundle: it is run once on every device while collecting, and each check is an item."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one item a check, or one failing item for a device that could not be used."""
        from edgekit import device, farm, tester
        from edgekit.runner import RunOptions

        config = self.config
        units = [unit for text in config.getoption("--edgekit-device") for unit in device.select(text, farm.in_use().units)]
        options = tester.Options(RunOptions(min_runs=config.getoption("--edgekit-runs")))
        for report in tester.test(self.path, units, options).reports:
            if report.failure is not None:
                yield CheckItem.from_parent(self, name=f"{report.device.name}: usable", report=report, check=None)
            for check in report.checks:
                yield CheckItem.from_parent(self, name=f"{report.device.name}: {check.name}", report=report, check=check)


class CheckItem(pytest.Item):
    """One check of one report."""

    def __init__(self, *, report: Report, check: Check | None, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.report = report
        self.check = check

    def runtest(self) -> None:
        """Fail when the check found an error, or the device could not be used."""
        if self.check is None or not self.check.passed:
            raise CheckFailed(self._text())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any) -> str:
        """The findings, without a traceback."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where the item comes from."""
        return self.path, None, self.name

    def _text(self) -> str:
        if self.check is None:
            assert self.report.failure is not None
            return f"{self.report.failure.message}\nhint: {self.report.failure.hint}"
        return "\n".join(map(_line, self.check.findings))


class CheckFailed(AssertionError):  # noqa: N818 - reads as what it says in pytest's output
    """A check of a bundle on a device is out of bounds."""


def _line(finding: Finding) -> str:
    return f"{finding.severity}: {finding.message}" + (f"\nhint: {finding.hint}" if finding.hint else "")
