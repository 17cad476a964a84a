#!/usr/bin/env python3
"""Simulates two hosts on one machine: ranks in two network namespaces, connected by a link with a bandwidth and a delay.

The link is two TAP devices whose frames this program forwards, because not every kernel has `netem`. Hydra (MPICH) starts the second rank without ssh.

    train   one run alone and one on two hosts: the weights must be equal to the bit; seconds per step of both
    cut     the link stops in the middle of a run, which must end with a message within the time limit

Needs root, /dev/net/tun, and an `mpiexec.hydra`.

    tools/bench/network.py train --gradus target/release/gradus --mpiexec DIR/mpiexec.hydra --model DIR --data rows.jsonl
"""

import argparse
import collections
import fcntl
import hashlib
import json
import os
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HOSTS = [("gradus0", "10.78.0.1"), ("gradus1", "10.78.0.2")]
FRAME = 60_000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def do(*command, check=True):
    return subprocess.run(command, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def tap(name):
    """A TAP device. Data written to it arrives in its namespace."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


class Link:
    """Forwards frames, each direction with its own bandwidth, until `cut`."""

    def __init__(self, bits_per_s, delay_s):
        self.seconds_per_byte, self.delay_s, self.is_cut = 8 / bits_per_s, delay_s, False
        self.sent = [0, 0]
        self.devices = []
        for number, (name, address) in enumerate(HOSTS):
            do("ip", "netns", "del", name, check=False)
            do("ip", "netns", "add", name)
            self.devices.append(tap(f"gtap{number}"))
            do("ip", "link", "set", f"gtap{number}", "netns", name)
            for command in (f"link set gtap{number} mtu {FRAME}", f"addr add {address}/24 dev gtap{number}", f"link set gtap{number} up", "link set lo up"):
                do("ip", "-n", name, *command.split())
        threading.Thread(target=self.forward, daemon=True).start()

    def forward(self):
        # A frame leaves after the previous frames, and arrives one delay later.
        under_way, free_at = [collections.deque(), collections.deque()], [0.0, 0.0]
        while True:
            now = time.monotonic()
            due = [queue[0][0] for queue in under_way if queue]
            ready, _, _ = select.select(self.devices, [], [], max(0.0, min(due) - now) if due else 0.2)
            now = time.monotonic()
            for device in ready:
                side = self.devices.index(device)
                try:
                    frame = os.read(device, FRAME + 64)
                except OSError:  # The namespaces are gone.
                    return
                free_at[side] = max(now, free_at[side]) + len(frame) * self.seconds_per_byte
                under_way[side].append((free_at[side] + self.delay_s, frame))
                self.sent[side] += len(frame)
            for side, queue in enumerate(under_way):
                while queue and queue[0][0] <= now:
                    frame = queue.popleft()[1]
                    if not self.is_cut:
                        os.write(self.devices[1 - side], frame)

    def close(self):
        for name, _ in HOSTS:
            do("ip", "netns", "del", name, check=False)


def launcher(folder):
    """The program that Hydra calls instead of ssh. It enters the namespace of the host, with a separate host name."""
    script = folder / "enter"
    lines = ["#!/bin/sh", 'while [ "${1#-}" != "$1" ]; do shift; done', "host=$1; shift"]
    for name, address in HOSTS:
        lines.append(f'[ "$host" = {address} ] && exec ip netns exec {name} unshare --uts sh -c "hostname {name}; $*"')
    script.write_text("\n".join([*lines, "exit 1", ""]))
    script.chmod(0o755)
    return script


def command(given, output, folder):
    train = [given.gradus, given.method, "--model", given.model, "--data", given.data, "--output-dir", str(output), "--overwrite", "--quiet"]
    train += ["--threads", "1", "--lanes", str(given.lanes), "--batch-size", str(given.batch_size), "--max-steps", str(given.steps)]
    train += ["--eval-steps", "-1", "--eval-fraction", "0", "--save-steps", "0", "--max-length", "128", *given.further]
    if folder is None:
        return train
    hosts = ",".join(address for _, address in HOSTS)
    # UCX detects that both hosts are one machine, and would use shared memory.
    hydra = [given.mpiexec, "-genv", "UCX_TLS", "tcp,self", "-n", "2", "-hosts", hosts, "-launcher", "ssh", "-launcher-exec", str(launcher(folder))]
    return ["ip", "netns", "exec", HOSTS[0][0], "unshare", "--uts", "sh", "-c", f'hostname {HOSTS[0][0]}; exec "$@"', "sh", *hydra, *train]


def step_seconds(output):
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    pairs = [(before, row) for before, row in zip(rows, rows[1:]) if "tokens_per_s" in before and "tokens_per_s" in row]
    return statistics.median((row["num_tokens"] - before["num_tokens"]) / row["tokens_per_s"] for before, row in pairs)


def digest(output):
    found = hashlib.sha256()
    for path in sorted((output / "final").glob("*.safetensors")):
        found.update(path.read_bytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "cut"])
    parser.add_argument("--gradus", required=True)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--method", default="sft")
    parser.add_argument("--bits", type=float, default=1e9, help="bits per second of the link")
    parser.add_argument("--delay", type=float, default=0.01, help="delay of the link in seconds, one way")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("further", nargs="*", help="further arguments of gradus, after --")
    given = parser.parse_args()
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        sys.exit("skipped: network namespaces need root and /dev/net/tun")
    for name in ("gradus", "model", "data", "mpiexec"):
        setattr(given, name, str(Path(getattr(given, name)).resolve()))
    link = Link(given.bits, given.delay)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if given.what == "cut":
                given.steps, given.further = 10_000, [*given.further, "--rank-timeout", "10"]
                process = subprocess.Popen(command(given, folder / "cut", folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                while not (folder / "cut" / "metrics.jsonl").exists() and process.poll() is None:
                    time.sleep(0.2)
                time.sleep(3)
                link.is_cut, since = True, time.monotonic()
                said, _ = process.communicate(timeout=120)
                print(f"ended {time.monotonic() - since:.1f} s after the cut with exit code {process.returncode}:\n{said.strip()}")
                return
            subprocess.run(command(given, folder / "alone", None), check=True, stdout=subprocess.DEVNULL)
            subprocess.run(command(given, folder / "two", folder), check=True)
            alone, two = digest(folder / "alone"), digest(folder / "two")
            seconds = [step_seconds(folder / of) for of in ("alone", "two")]
            sent = max(link.sent) / given.steps / 1e6
            print(f"one process: {seconds[0]:.2f} s per step; two hosts: {seconds[1]:.2f} s, {sent:.0f} MB per step each way; {given.bits / 1e9:g} Gbit/s, {given.delay * 1e3:g} ms")
            print("the weights are equal to the bit" if alone == two else f"the weights DIFFER: {alone} and {two}")
            sys.exit(alone != two)
    finally:
        link.close()


if __name__ == "__main__":
    main()
