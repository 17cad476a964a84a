"""Runs one process of one side. Measures wall time, peak memory, and the time at which each line of an output file appears."""

import os
import subprocess
import threading
import time

import machine

THREADS = 2
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS), "RAYON_NUM_THREADS": str(THREADS),
    "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}  # fmt: skip
POLL_S = 0.002


class Failed(Exception):
    """The process ended with an error. The message is the end of its output."""


def two_cores():
    """Gives both sides the same cores, also on a machine with more cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


class LineWatch(threading.Thread):
    """Records the time at which each line of a growing file appears, with a resolution of about `POLL_S`."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.stamps, self.size, self.over = path, [], 0, False

    def run(self):
        while not self.over:
            self.look()
            time.sleep(POLL_S)

    def look(self):
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError:
            return
        if size == self.size:
            return
        now = time.monotonic()
        with open(self.path, "rb") as file:
            file.seek(self.size)
            self.stamps += [now] * file.read(size - self.size).count(b"\n")
        self.size = size


def run(command, log, watched=None):
    """Runs `command` and writes its output to the file `log`.

    Returns `wall_s`, `peak_bytes` (the largest resident set, from the kernel), `foreign_cpu` (cores that other processes
    kept busy meanwhile, on average) and `stamps` of the lines of `watched`.
    """
    watch = LineWatch(watched) if watched else None
    if watch:
        watch.start()
    with open(log, "wb") as out:
        began, busy = time.monotonic(), machine.busy_seconds()
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT}, preexec_fn=two_cores,
        )  # fmt: skip
        _, status, usage = os.wait4(child.pid, 0)
        wall, busy = time.monotonic() - began, machine.busy_seconds() - busy
    child.returncode = os.waitstatus_to_exitcode(status)
    if watch:
        watch.over = True
        watch.join()
        watch.look()
    if child.returncode != 0:
        raise Failed(tail(log))
    foreign = max(0.0, busy - usage.ru_utime - usage.ru_stime) / wall
    stamps = watch.stamps if watch else []
    return {"wall_s": wall, "peak_bytes": usage.ru_maxrss * 1024, "foreign_cpu": foreign, "stamps": stamps}


def tail(log):
    with open(log, "rb") as file:
        return file.read()[-2000:].decode("utf-8", "replace").strip()
