"""All the project's chores, each by one command: `nox -s tests`, `nox -s demo`, `nox -s lint`, `nox -s bench`.

Every session makes its own environment and installs the system packages it needs when it may (root, or sudo without a password).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

CONSTRAINTS = ("-c", "constraints.txt")
SYSTEM_PACKAGES = {
    "adb": "adb",
    "qemu-aarch64-static": "qemu-user-static",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "gcc": "gcc",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
}


def install_system_packages(session: nox.Session) -> None:
    """Install the Debian packages whose programs are absent; say which are missing when this is not allowed here."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for program, names in SYSTEM_PACKAGES.items() if not shutil.which(program, path=path) for name in names.split()]
    if not missing:
        return
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not shutil.which("apt-get"):
        session.warn(f"no apt-get here; tests that need {', '.join(missing)} are skipped")
        return
    quiet = {"stdout": subprocess.DEVNULL, "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}}
    done = subprocess.run([*prefix, "apt-get", "update", "-qq"], **quiet, check=False).returncode == 0
    done = (
        done
        and subprocess.run([*prefix, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], **quiet, check=False).returncode == 0
    )
    if not done:
        session.warn(f"could not install {', '.join(missing)}; tests that need them are skipped")


def install(session: nox.Session, extra: str) -> None:
    session.install("-q", "-e", f".[{extra}]", *CONSTRAINTS)


def install_tflm_for_a_core(session: nox.Session) -> None:
    """Firmware of Arm's with TensorFlow Lite Micro: only that file is used, not the program around it and what that asks for."""
    session.install("-q", "--no-deps", "mlia==0.9.2")


def prepare_devices(session: nox.Session) -> None:
    """What edgekit itself never downloads unasked: runtimes for other machines, the virtual device's userland."""
    session.run("edgekit", "tools", "install", "runtimes")
    session.run("edgekit", "devices", "install", "virtual:android-arm64")


@nox.session(python=False)
def system(session: nox.Session) -> None:
    """Install the system packages that tests and virtual devices need."""
    install_system_packages(session)


@nox.session
def tests(session: nox.Session) -> None:
    """Types, style, import rules and every test. Arguments go to pytest: nox -s tests -- -m 'not slow'."""
    install_system_packages(session)
    install(session, "dev")
    install_tflm_for_a_core(session)
    check(session)
    prepare_devices(session)
    session.run("edgekit", "tools", "install", "onnx2tf")
    session.run("edgekit", "tools", "install", "kotlin")
    session.run("python", "tests/zoo/fetch.py")
    session.run("pytest", "-q", "-n", "2", "--dist", "loadfile", *(session.posargs or ["--durations=15"]))
    session.notify("ios", [])


@nox.session
def ios(session: nox.Session) -> None:
    """The iOS transport by the real pymobiledevice3, which wants newer packages than the Hexagon tools do: it has an environment of its own."""
    session.install("-q", "-e", ".[ios]", "pytest>=8", "hypothesis", *CONSTRAINTS)
    session.run("pytest", "-q", "tests/test_transport_ios_usb.py", "tests/test_transport_ios.py", env={"PYTHONPATH": str(Path.cwd())})


def check(session: nox.Session) -> None:
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session
def lint(session: nox.Session) -> None:
    """Types, style and import rules alone."""
    install(session, "dev")
    check(session)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job on a trained model: package it within a budget, then prove it on a virtual Android device."""
    install_system_packages(session)
    install(session, "demo")
    prepare_devices(session)
    session.run("python", "tests/zoo/demo.py", env={"PYTHONPATH": str(Path.cwd())})
    session.log("see out/ for the bundle and the report")


@nox.session
def conformance(session: nox.Session) -> None:
    """Every ONNX operator test through the Hexagon route on the HTP simulator; writes docs/onnx-conformance.md (an hour of one core)."""
    install(session, "dev")
    session.run("python", "-m", "tests.conformance.write_table", "--processes", "2", env={"PYTHONPATH": str(Path.cwd())})


@nox.session
def bench(session: nox.Session) -> None:
    """Benchmarks, as ratios against the plain tool run side by side."""
    install_system_packages(session)
    install(session, "dev,bench")
    prepare_devices(session)
    for script in sorted(Path("benchmarks").glob("bench_*.py")):
        session.run("python", str(script), env={"PYTHONPATH": str(Path.cwd())})
