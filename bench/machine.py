"""What the benchmarks ran on: processor, memory, kernel, disk and file system."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _field(path: str, key: str) -> str:
    for line in _read(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _mount_of(directory: Path) -> dict[str, str]:
    """Mount point, file system and device below `directory`, from /proc/self/mountinfo."""
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if fields[2] == wanted:
            kind, source, super_options = right.split()[:3]
            return {"file_system": kind, "device": source, "options": f"{fields[5]},{super_options}"}
    return {"file_system": "unknown", "device": wanted, "options": "unknown"}


def _disk_of(directory: Path) -> dict[str, str]:
    """Queue settings of the block device; a partition's are those of its disk."""
    device = os.stat(directory).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    queue = next((at / "queue" for at in (block, block.parent) if (at / "queue").is_dir()), None)
    if queue is None:
        return {}
    names = ("rotational", "scheduler", "nr_requests", "max_sectors_kb", "write_cache")
    model = _read(str(queue.parent / "device" / "model"))
    return {"model": model, **{name: _read(str(queue / name)) for name in names}}


def describe(directory: Path) -> dict[str, Any]:
    space = os.statvfs(directory)
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "transparent_hugepage": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_before": os.getloadavg()[0],
        **_mount_of(directory),
        "disk": _disk_of(directory),
        "free_bytes": space.f_bavail * space.f_frsize,
    }


def text(machine: dict[str, Any]) -> str:
    disk = ", ".join(f"{name} {value}" for name, value in machine["disk"].items() if value != "unknown")
    return "\n".join(
        [
            f"processor    {machine['cpu']}, {machine['cores']} cores,"
            f" {machine['memory_bytes'] / 2**30:.1f} GiB of memory",
            f"kernel       {machine['kernel']}, huge pages {machine['transparent_hugepage']}",
            f"file system  {machine['file_system']} on {machine['device']} ({machine['options']}),"
            f" {machine['free_bytes'] / 1e9:.0f} GB free",
            f"disk         {disk or 'unknown'}",
            f"load         {machine['load_before']:.2f} before the start",
        ]
    )
