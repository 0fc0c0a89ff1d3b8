"""What a device with a POSIX shell is: one script that prints it all in one round trip, and the reader of what it printed. Android and Linux."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from edgekit.transports import Facts

# Only builtins in the loops: a process costs milliseconds on a phone and tens of them under emulation.
SCRIPT = r"""
echo '--props'; command -v getprop >/dev/null 2>&1 && getprop
echo '--uname'; uname -s -r -m
echo '--machine'
for f in /etc/machine-id /proc/device-tree/model /proc/device-tree/serial-number; do [ -r $f ] && echo "$f $(tr -d '\0' < $f)"; done
echo '--release'; [ -r /etc/os-release ] && while IFS= read -r line; do echo "$line"; done < /etc/os-release
echo '--linker'; for f in /system/bin/linker64 /system/bin/linker; do [ -e $f ] && echo $f; done
echo '--memory'; while read -r key value rest; do [ "$key" = MemTotal: ] && echo "$value"; done < /proc/meminfo
echo '--cores'; for d in /sys/devices/system/cpu/cpu[0-9]*; do [ -e $d ] && echo $d; done
echo '--cpus'; read -r line < /sys/devices/system/cpu/possible && echo "$line"
echo '--boot'; read -r line < /proc/sys/kernel/random/boot_id && echo "$line"
echo '--zones'
for z in /sys/class/thermal/thermal_zone*; do [ -r $z/temp ] && read -r kind < $z/type && read -r value < $z/temp && echo "$value $kind"; done
echo '--end'
exit 0
"""
MOST_CHARACTERS, MOST_DETAILS = 200, 256
_EMULATOR_HARDWARE = frozenset({"goldfish", "ranchu", "cutf", "cutf_cvm", "vsoc_x86", "vsoc_arm64", "cutf_ivsh"})


class _Common(NamedTuple):
    cores: int | None
    memory_bytes: int | None
    details: dict[str, str]


def read(text: str, address: str, details: dict[str, str]) -> Facts:
    """The facts in the script's output; `address` is the identity of a device that names none."""
    parts = _sections(text)
    props = _properties(parts.get("props", ""))
    common = _common(parts)
    is_android = "ro.build.version.sdk" in props
    return bounded(_android(props, parts, address, common, details) if is_android else _linux(parts, address, common, details))


def bounded(facts: Facts) -> Facts:
    """The facts with texts of at most `MOST_CHARACTERS` and as many details as `MOST_DETAILS`: a device may say anything of itself."""
    texts = {name: value[:MOST_CHARACTERS] for name, value in msgspec.structs.asdict(facts).items() if isinstance(value, str)}
    details = {name[:MOST_CHARACTERS]: value[:MOST_CHARACTERS] for name, value in list(facts.details.items())[:MOST_DETAILS]}
    return msgspec.structs.replace(facts, **texts, details=details)


def _sections(text: str) -> dict[str, str]:
    found = re.split(r"^--(\w+)$", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return {name: body.strip("\n") for name, body in zip(found[1::2], found[2::2], strict=False)}


def _properties(text: str) -> dict[str, str]:
    """What `getprop` prints: `[NAME]: [VALUE]`, where a value may hold line ends."""
    entries = (entry.partition("]: [") for entry in f"{text}\n".split("]\n"))
    return {name.rpartition("\n")[2].removeprefix("["): value for name, separator, value in entries if separator}


def _common(parts: dict[str, str]) -> _Common:
    zones = [line.split(" ", 1) for line in parts.get("zones", "").splitlines() if re.fullmatch(r"-?[0-9]+ .+", line)]
    temperatures = {f"temperature_millicelsius.{kind}": value for value, kind in zones}
    memory_kib = parts.get("memory", "")
    boot = {"boot_id": parts["boot"]} if parts.get("boot") else {}
    return _Common(
        cores=len(parts.get("cores", "").split()) or _cpu_list(parts.get("cpus", "")),
        memory_bytes=int(memory_kib) * 1024 if re.fullmatch(r"[0-9]{1,15}", memory_kib) else None,
        details={**boot, **temperatures},
    )


def _android(props: dict[str, str], parts: dict[str, str], address: str, common: _Common, details: dict[str, str]) -> Facts:
    abi = props.get("ro.product.cpu.abi", "")
    bionic = bool(parts.get("linker"))
    soc = " ".join(word for word in (props.get("ro.soc.manufacturer"), props.get("ro.soc.model")) if word)
    return Facts(
        identity=props.get("ro.serialno") or props.get("ro.boot.serialno") or address,
        os="android",
        abi=abi,
        platform=f"android-{abi}" if bionic else _linux_platform(parts),
        runner="native",
        model=" ".join(word for word in (props.get("ro.product.manufacturer"), props.get("ro.product.model")) if word),
        soc=soc or props.get("ro.board.platform", ""),
        os_build=props.get("ro.build.fingerprint", ""),
        cores=common.cores,
        memory_bytes=common.memory_bytes,
        emulated=_is_emulated(props),
        details={**details, "api_level": props["ro.build.version.sdk"], **common.details, **_kernel(parts)},
    )


def _linux(parts: dict[str, str], address: str, common: _Common, details: dict[str, str]) -> Facts:
    machine = dict(line.split(" ", 1) for line in parts.get("machine", "").splitlines() if " " in line)
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', parts.get("release", ""), re.MULTILINE)
    return Facts(
        identity=machine.get("/proc/device-tree/serial-number") or machine.get("/etc/machine-id") or address,
        os="linux",
        abi=_machine(parts),
        platform=_linux_platform(parts),
        runner="native",
        model=machine.get("/proc/device-tree/model", ""),
        os_build=release[1] if release else "",
        cores=common.cores,
        memory_bytes=common.memory_bytes,
        details={**details, **common.details, **_kernel(parts)},
    )


def _is_emulated(props: dict[str, str]) -> bool:
    flags = (props.get(name, "") == "1" for name in ("ro.kernel.qemu", "ro.boot.qemu", "ro.edgekit.emulated"))
    return any(flags) or props.get("ro.hardware", "") in _EMULATOR_HARDWARE


def _machine(parts: dict[str, str]) -> str:
    words = parts.get("uname", "").split()
    return words[-1] if words else ""


def _linux_platform(parts: dict[str, str]) -> str:
    return f"linux-{_machine(parts)}"


def _kernel(parts: dict[str, str]) -> dict[str, str]:
    return {"kernel": parts["uname"]} if parts.get("uname") else {}


def _cpu_list(text: str) -> int | None:
    """The number of processors in a list like `0-3,6`."""
    ranges = re.findall(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges) or None
