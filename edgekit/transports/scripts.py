"""The shell scripts of a run on a device, for any POSIX shell (Android's mksh, dash, busybox), and readers of what they print.

Names reach a script as quoted assignments or as lines on its standard input, never spliced into its text. Layout under the base folder:
`cache/<sha256>`, `run-<id>/job`, `run-<id>/result`; a run folder is `run-<id>.part` until everything in it is verified.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Iterable, Set

import msgspec

FAILED = 73
NOT_EXECUTABLE = 74
NOT_AS_SENT = 75

# Few processes: each costs milliseconds on a phone and tens of them under emulation. mksh and bash know the time themselves.
_PREPARE = """
umask 077
now=${EPOCHREALTIME:-$(date +%s)}
now=${now%%[.,]*}
set -- "$BASE/cache" "$BASE/run-$ID.part/result"
while IFS= read -r folder && [ -n "$folder" ]; do set -- "$@" "$BASE/run-$ID.part/job/$folder"; done
mkdir -p "$BASE/run-$ID.part/job" "$@" && cd "$BASE" && echo "$OWNER $now" > "run-$ID.part/.owner" || exit 73
while IFS= read -r hash; do [ ! -f "cache/$hash" ] || echo "have $hash"; done
echo "now $now"
for file in run-*/.owner; do read -r line < "$file" && echo "run $file $line"; done
exit 0
"""

# A cache entry that is gone or rotten is found by its hash in the run folder, like a file that arrived wrong.
_ASSEMBLE = """
umask 077
set -f
cd "$BASE" || exit 73
job=run-$ID.part/job newline='
'
wanted= new= large=
set --
while IFS=' ' read -r kind hash name; do
  if [ "$kind" = cached ] && [ ! -e "$job/$name" ]; then ln "cache/$hash" "$job/$name" 2>/dev/null || cp "cache/$hash" "$job/$name" 2>/dev/null; fi
  [ "$kind" != new ] || new="$new$hash $name$newline"
  [ "$kind" = small ] || large="$large cache/$hash"
  wanted="$wanted $hash"
  set -- "$@" "$job/$name"
done
printed=$(sha256sum "$@")
[ $? -lt 126 ] || exit 127
IFS=$newline found=
for line in $printed; do found="$found ${line%% *}"; done
[ "$found" = "$wanted" ] || { echo "$printed"; exit 75; }
eval "set -- $EXECUTABLES"
for file in "$@"; do [ -x "$job/$file" ] || chmod 755 "$job/$file" || exit 73; done
[ -x "$job/runner" ] || exit 74
for line in $new; do
  file=$job/${line#* } entry=cache/${line%% *}
  [ "$file" -ef "$entry" ] || ln -f "$file" "$entry" 2>/dev/null || { cp "$file" "cache/.$ID-part" && mv -f "cache/.$ID-part" "$entry"; } || exit 73
done
IFS=' '
[ -z "$large" ] || touch -c $large
mv "run-$ID.part" "run-$ID" || exit 73
"""

_RUN = """
cd "$BASE/run-$ID/job" || exit 73
export LD_LIBRARY_PATH="$PWD${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
./runner . ../result >&2 &
echo "$! $$" > ../.pid || exit 73
wait $!
code=$?
cd ../result && find . -type f ! -name '.*' -exec sha256sum {} +
exit $code
"""

_LIST = """
cd "$BASE/run-$ID/result" || exit 73
exec find . -type f ! -name '.*' -exec sha256sum {} +
"""

_CLEAN = """
cd "$BASE" 2>/dev/null || exit 0
for id in $IDS; do
  if read -r pid shell 2>/dev/null < "run-$id/.pid"; then
    if [ ! -d /proc/self ] || grep -q runner "/proc/$pid/cmdline" 2>/dev/null; then kill -9 "-$shell" "$pid" 2>/dev/null; fi
  fi
  set -- "$@" "run-$id" "run-$id.part"
  for part in cache/."$id"-*; do set -- "$@" "$part"; done
done
rm -rf "$@" || exit 73
[ "$SIZES" = no ] || stat -c '%Y %s %n' cache/* 2>/dev/null
exit 0
"""

_EVICT = """
cd "$BASE/cache" 2>/dev/null || exit 0
while IFS= read -r name; do set -- "$@" "$name"; done
[ $# = 0 ] || exec rm -f "$@"
"""

_CLEAR = """
exec rm -rf "$BASE/cache"
"""

_DIAGNOSE = """
cd "$BASE/run-$ID/job" 2>/dev/null || cd "$BASE/run-$ID.part/job" || exit 0
ls -l runner
echo "enforce $(getenforce 2>/dev/null)"
while read -r device mount kind flags rest; do
  case "$PWD/" in "${mount%/}"/*) case ",$flags," in *,noexec,*) echo "noexec $mount" ;; esac ;; esac
done < /proc/mounts
{ logcat -d -t 500 2>/dev/null; dmesg 2>/dev/null; } | grep -i -E 'lowmemorykiller|lmkd|out of memory|oom-kill|avc: *denied' | tail -n 3
grep -E 'MemTotal|MemAvailable' /proc/meminfo
exit 0
"""


class Occupant(msgspec.Struct, frozen=True):
    """A run folder found on the device: whose it is, and its age in seconds by the device's clock."""

    id: str
    host: str
    pid: int
    age_s: float


class Prepared(msgspec.Struct, frozen=True):
    """What the device already has: hashes in its cache, and the run folders of others."""

    cached: frozenset[str]
    others: tuple[Occupant, ...]


def prepare(base: str, run: str) -> str:
    """Make the folders of a run, with a record of its owner. Standard input: lines of `wants`; output for `read_prepared`."""
    return _assign(BASE=base, ID=run, OWNER=f"{socket.gethostname()} {os.getpid()}") + _PREPARE


def wants(folders: Iterable[str], hashes: Iterable[str]) -> bytes:
    """Input of `prepare`: folders to make in the job folder, and hashes to look for in the cache."""
    return "".join(f"{line}\n" for line in [*folders, "", *hashes]).encode()


def read_prepared(text: str, run: str) -> Prepared:
    """What `prepare` printed, without the run's own folder."""
    cached = frozenset(re.findall(r"^have ([0-9a-f]{64})$", text, re.MULTILINE))
    now = re.search(r"^now ([0-9]{1,12})$", text, re.MULTILINE)
    found = re.findall(r"^run run-([0-9a-f]+)(?:\.part)?/\.owner (\S+) ([0-9]{1,9}) ([0-9]{1,12})$", text, re.MULTILINE)
    clock_s = int(now[1]) if now else 0
    return Prepared(cached, tuple(Occupant(id, host, int(pid), clock_s - int(since)) for id, host, pid, since in found if id != run))


def stale(others: Iterable[Occupant], active: Set[str], limit_s: float) -> tuple[str, ...]:
    """Run folders nobody uses any more: their process here is gone or has given them up, or they are of elsewhere and older than `limit_s`."""
    return tuple(other.id for other in others if other.age_s > limit_s or (other.host == socket.gethostname() and not _in_use(other, active)))


def assemble(base: str, run: str, executables: Iterable[str]) -> str:
    """Make the run folder of pushed and cached files, verified by their hashes, and keep the new ones.

    Standard input: a line `KIND SHA256 NAME` for each file. KIND is `small`, `cached` (taken from the cache) or `new` (pushed, to be kept there).
    Exits `NOT_AS_SENT` and prints the hashes when one differs, `NOT_EXECUTABLE` when the runner cannot be executed, 127 without sha256sum.
    """
    return _assign(BASE=base, ID=run, EXECUTABLES=" ".join(map(shlex.quote, executables))) + _ASSEMBLE


def read_hashes(text: str) -> dict[str, str]:
    """SHA-256 by name in the job folder, from what `assemble` printed."""
    return {name: sha256 for sha256, name in re.findall(r"^([0-9a-f]{64}) [ *]run-[0-9a-f]+\.part/job/(.+)$", text, re.MULTILINE)}


def start(base: str, run: str) -> str:
    """Run the runner; its exit code is the script's, which prints what `list_results` does."""
    return _assign(BASE=base, ID=run) + _RUN


def list_results(base: str, run: str) -> str:
    """Print hash and name of every finished result file of a run that did not get to print them."""
    return _assign(BASE=base, ID=run) + _LIST


def clean(base: str, runs: Iterable[str], sizes: bool) -> str:
    """Remove run folders and their unfinished cache entries, killing a runner left over; with `sizes`, print the cache for `evictable`."""
    return _assign(BASE=base, IDS=" ".join(runs), SIZES="yes" if sizes else "no") + "IFS=' '\n" + _CLEAN


def evictable(text: str, limit_bytes: int) -> tuple[str, ...]:
    """Cache entries to remove, longest unused first, until the rest fits `limit_bytes`."""
    found = re.findall(r"^([0-9]{1,12}) ([0-9]{1,15}) cache/([0-9a-f]{64})$", text, re.MULTILINE)
    entries = sorted((int(used), int(size), name) for used, size, name in found)
    excess = sum(size for _, size, _ in entries) - limit_bytes
    names = []
    for _, size, name in entries:
        if excess <= 0:
            break
        names.append(name)
        excess -= size
    return tuple(names)


def evict(base: str) -> str:
    """Remove cache entries. Standard input: hashes, one a line."""
    return _assign(BASE=base) + _EVICT


def clear(base: str) -> str:
    """Remove the whole cache."""
    return _assign(BASE=base) + _CLEAR


def diagnose(base: str, run: str) -> str:
    """Print what explains a runner that would not start or was killed; see `explain`."""
    return _assign(BASE=base, ID=run) + _DIAGNOSE


def explain(text: str) -> str:
    """The cause in what `diagnose` printed, for people."""
    causes = []
    if mount := re.search(r"^noexec (.+)$", text, re.MULTILINE):
        causes.append(f"{mount[1]} is mounted noexec: name a folder elsewhere with the option base")
    if mode := re.search(r"^-([rwxsSt-]{9})", text, re.MULTILINE):
        causes += [] if "x" in mode[1][:3] else [f"the file system took the execute bit away (mode {mode[1]})"]
    if re.search(r"^enforce Enforcing$", text, re.MULTILINE):
        causes.append("SELinux is enforcing: only /data/local/tmp is executable for the shell user")
    causes += re.findall(r"^.*(?:lowmemorykiller|lmkd|[Oo]ut of memory|oom-kill|avc: *denied).*$", text, re.MULTILINE)[-1:]
    if memory := re.search(r"^MemAvailable:\s*([0-9]{1,15}) kB", text, re.MULTILINE):
        causes.append(f"{int(memory[1]) * 1024 / 1e6:.0f} MB of memory are available now")
    return "; ".join(causes)


def _assign(**values: str) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def _in_use(other: Occupant, active: Set[str]) -> bool:
    if other.pid == os.getpid():
        return other.id in active
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
