"""The machine and the versions, read from the system."""

import os
import pathlib
import platform
import re
import subprocess

FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16",
         "asimd", "bf16", "i8mm", "sve")  # fmt: skip
LIBRARIES = ("torch", "transformers", "trl", "accelerate", "datasets", "tokenizers", "numpy")


def field(text, name):
    found = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else None


def describe():
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    memory = pathlib.Path("/proc/meminfo").read_text()
    flags = set((field(cpu, "flags") or field(cpu, "Features") or "").split())
    return {
        "cpu": field(cpu, "model name") or platform.processor(),
        "family": field(cpu, "cpu family"),
        "model": field(cpu, "model"),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "caches": caches(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_bytes": int(field(memory, "MemTotal").split()[0]) * 1024,
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def caches():
    """Sizes of one core's caches, from the largest level down."""
    found = {}
    for index in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level = (index / "type").read_text().strip(), (index / "level").read_text().strip()
        if kind != "Instruction":
            found[f"L{level}"] = (index / "size").read_text().strip()
    return found


def versions(binary, python):
    """Versions of gradus, Python and the libraries."""
    gradus = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    listed = f"import importlib.metadata as m, sys; print(sys.version.split()[0], *[m.version(n) for n in {LIBRARIES}])"
    found = subprocess.run([python, "-c", listed], capture_output=True, text=True, check=True).stdout.split()
    return {"gradus": gradus, **dict(zip(("python", *LIBRARIES), found))}


def busy_seconds():
    """CPU seconds of all processes since the machine started, and the seconds that its host took away (steal time)."""
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = [int(value) for value in fields]
    return (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK")
