"""A phone over USB, by pymobiledevice3 (version 11: its interface is asynchronous)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from edgekit.errors import FULL, DeviceError, EdgekitError, require
from edgekit.transports import folders
from edgekit.transports.failures import failure, too_much

T = TypeVar("T")

TUNNEL_FROM = 17
"""Major version of iOS from which starting an app needs a developer tunnel."""

CHUNK_BYTES = 1 << 20

REASONS = {
    "ConnectionFailedToUsbmuxdError": ("offline", "usbmuxd does not answer", "install and start usbmuxd, and plug the phone in"),
    "NoDeviceConnectedError": ("no-device", "no phone is connected", "plug one in and unlock it"),
    "DeviceNotFoundError": ("not-found", "no phone with this UDID is connected", "'pymobiledevice3 usbmux list' lists those that are"),
    "PasswordRequiredError": ("unauthorized", "the phone is locked", "unlock it, and trust this computer"),
    "PairingDialogResponsePendingError": ("unauthorized", "the phone asks whether to trust this computer", "answer there, then try again"),
    "UserDeniedPairingError": ("unauthorized", "the phone does not trust this computer", "plug it in again and choose Trust"),
    "NotPairedError": ("unauthorized", "the phone is not paired with this computer", "plug it in again and choose Trust"),
    "AppNotInstalledError": ("unsupported", "the runner app is not installed", "build apps/ios/EdgekitRunner.xcodeproj and install it"),
    "DeveloperModeIsNotEnabledError": ("unsupported", "developer mode is off", "switch it on: Settings, Privacy & Security, Developer Mode"),
    "DeveloperDiskImageNotFoundError": ("unsupported", "no developer image is mounted", "'pymobiledevice3 mounter auto-mount' mounts it"),
    "TunneldConnectionError": ("unsupported", "there is no developer tunnel", "start 'sudo pymobiledevice3 remote tunneld'"),
}


def open(udid: str, bundle_id: str) -> UsbPhone:
    """The phone `udid` (the only one when empty). Raises `MissingPackageError`, `DeviceError`."""
    require("pymobiledevice3", extra="ios", purpose="reaching an iPhone or iPad")
    return UsbPhone(udid, bundle_id)


class UsbPhone:
    """One phone; each call connects anew, because a phone that sleeps drops what is idle."""

    def __init__(self, udid: str, bundle_id: str) -> None:
        self._udid, self._bundle = udid, bundle_id

    def describe(self) -> dict[str, str]:
        """What lockdown tells."""

        async def work() -> dict[str, str]:
            async with await self._lockdown() as lockdown:
                return {name: str(value) for name, value in lockdown.all_values.items() if isinstance(value, str)}

        return self._do(work())

    def put(self, folder: Path, place: str) -> None:
        """Push every file of a folder."""

        async def work() -> None:
            async with await self._lockdown() as lockdown, await self._documents(lockdown) as documents:
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        target = f"/{place}/{path.relative_to(folder).as_posix()}"
                        await documents.makedirs(target.rpartition("/")[0])
                        await documents.set_file_contents(target, path.read_bytes())

        self._do(work())

    def launch(self, arguments: list[str]) -> None:
        """Start the app by the instruments service: through a tunnel from iOS 17 on."""

        async def work() -> None:
            from pymobiledevice3.services.dvt.instruments.dvt_provider import DvtProvider
            from pymobiledevice3.services.dvt.instruments.process_control import ProcessControl

            async with await self._lockdown() as lockdown:
                tunneled = int(str(lockdown.product_version).partition(".")[0]) >= TUNNEL_FROM
                provider = await self._tunnel(lockdown.udid) if tunneled else lockdown
                async with DvtProvider(provider) as instruments, ProcessControl(instruments) as control:
                    await control.launch(self._bundle, arguments=arguments, kill_existing=True)

        self._do(work())

    def holds(self, place: str) -> bool:
        """Whether a file is in the app's Documents."""

        async def work() -> bool:
            async with await self._lockdown() as lockdown, await self._documents(lockdown) as documents:
                return bool(await documents.exists(f"/{place}"))

        return self._do(work())

    def fetch(self, place: str, folder: Path, limit_bytes: int) -> None:
        """Pull the regular files of a folder and of those inside it. What the phone says of their sizes is not relied on."""

        async def work() -> None:
            left_bytes = limit_bytes
            async with await self._lockdown() as lockdown, await self._documents(lockdown) as documents:
                for name in await self._listed(documents, f"/{place}"):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    left_bytes -= await self._pull(documents, f"/{place}/{name}", folder / name, left_bytes)
                    if left_bytes < 0:
                        raise too_much(f"ios:{self._udid}", limit_bytes)

        self._do(work())

    def remove(self, place: str) -> None:
        """Remove a run's folder."""

        async def work() -> None:
            async with await self._lockdown() as lockdown, await self._documents(lockdown) as documents:
                await documents.rm(f"/{place}", force=True)

        self._do(work())

    async def _listed(self, documents: Any, place: str) -> list[str]:
        """The regular files of a folder and of those inside it. Raises `RunnerError` (stage `output`) for more than one folder may hold."""
        found: list[str] = []
        folders_left, seen = [""], 0
        while folders_left:
            inner = folders_left.pop()
            for name in await documents.listdir(f"{place}/{inner}"):
                seen += 1
                folders.check_count(seen)
                if Path(name).name != name or name.startswith(".") or "\\" in name:
                    continue
                kind = (await documents.stat(f"{place}/{inner}{name}"))["st_ifmt"]
                if kind == "S_IFDIR":
                    folders_left.append(f"{inner}{name}/")
                elif kind == "S_IFREG":
                    found.append(f"{inner}{name}")
        return found

    async def _pull(self, documents: Any, source: str, path: Path, limit_bytes: int) -> int:
        """Read one file to its end, or until more than `limit_bytes` have come; how many came."""
        total = 0
        handle = await documents.fopen(source, "r")
        with path.open("wb") as file:
            while total <= limit_bytes and (data := await documents.fread(handle, CHUNK_BYTES)):
                total += len(data)
                file.write(data)
        await documents.fclose(handle)
        return total

    async def _lockdown(self) -> Any:
        from pymobiledevice3.lockdown import create_using_usbmux

        return await create_using_usbmux(serial=self._udid or None)

    async def _documents(self, lockdown: Any) -> Any:
        from pymobiledevice3.services.house_arrest import HouseArrestService

        return await HouseArrestService.create(lockdown, self._bundle, documents_only=True)

    async def _tunnel(self, udid: str) -> Any:
        from pymobiledevice3.tunneld.api import get_tunneld_device_by_udid

        found = await get_tunneld_device_by_udid(udid)
        if found is None:
            raise self._failed("TunneldConnectionError", "")
        return found

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run(work)
        except EdgekitError:
            raise
        except Exception as error:  # pymobiledevice3 raises some eighty types, and sockets their own
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise self._failed(type(error).__name__, str(error)) from error

    def _failed(self, kind: str, said: str) -> DeviceError:
        reason, what, hint = REASONS.get(kind, ("dropped", f"{kind}: {said[:200]}", None))
        return failure(f"ios:{self._udid}", reason, what, hint)
