"""The files by which the device shows itself: processor, clocks, thermal zones, memory, Android properties.

They are more than decoration: runtimes that probe the processor crash on the host's x86 /proc/cpuinfo, and need the lists of cores in /sys.
"""

from __future__ import annotations

from pathlib import Path

from edgekit.virtual.android.faults import HEALTHY
from edgekit.virtual.android.options import BIG_KHZ, DeviceOptions, core_count, nominal_clocks_khz, properties
from edgekit.virtual.android.story import readings

PROPERTIES = "dev/__properties__"

# A Cortex-A55 (0xd05) for little cores and a Cortex-A76 (0xd0b) for big ones; the features are those that qemu's default processor has.
_CPUINFO = """processor\t: {core}
BogoMIPS\t: 38.40
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
CPU revision\t: 0

"""


def cpuinfo(options: DeviceOptions) -> str:
    """The text of /proc/cpuinfo."""
    clocks = nominal_clocks_khz(core_count(options))
    rows = [_CPUINFO.format(core=core, part="0xd0b" if khz == BIG_KHZ else "0xd05") for core, khz in enumerate(clocks)]
    return "".join(rows) + f"Hardware\t: {options.model}\n"


def sysfs(options: DeviceOptions) -> dict[str, str]:
    """The files below /sys, by path."""
    clocks = nominal_clocks_khz(core_count(options))
    everyone = f"0-{len(clocks) - 1}" if len(clocks) > 1 else "0"
    files = {f"devices/system/cpu/{name}": everyone for name in ("possible", "present", "online")}
    for core, khz in enumerate(clocks):
        folder = f"devices/system/cpu/cpu{core}"
        alike = [str(other) for other, clock in enumerate(clocks) if clock == khz]
        files |= {
            f"{folder}/cpu_capacity": "1024" if khz == max(clocks) else "512",
            f"{folder}/cpufreq/cpuinfo_max_freq": str(khz),
            f"{folder}/cpufreq/cpuinfo_min_freq": "300000",
            f"{folder}/cpufreq/related_cpus": " ".join(alike),
            f"{folder}/cpufreq/scaling_governor": "performance",
            f"{folder}/cpufreq/scaling_max_freq": str(khz),
            f"{folder}/topology/core_id": str(core),
            f"{folder}/topology/core_siblings_list": everyone,
            f"{folder}/topology/physical_package_id": "0",
            f"{folder}/topology/thread_siblings_list": str(core),
        }
    for zone, name in enumerate(("cpu-0-0", "skin")):
        files[f"class/thermal/thermal_zone{zone}/type"] = name
    return files | {name: str(value) for name, value in readings(HEALTHY, 0.0, clocks).items()}


def write(root: Path, options: DeviceOptions) -> None:
    """Write /sys, the properties and the processor's description (to /dev/.cpuinfo) below `root`."""
    files = {f"sys/{name}": text + "\n" for name, text in sysfs(options).items()}
    files[PROPERTIES] = "".join(f"{name}={value}\n" for name, value in properties(options).items())
    files["dev/.cpuinfo"] = cpuinfo(options)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
