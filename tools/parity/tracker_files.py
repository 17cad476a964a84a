"""Reads gradus' files for experiment trackers with the trackers' own packages, and compares them with `metrics.jsonl`.

    gradus grpo … --tensorboard --wandb --output-dir DIR
    ~/gradus-trackers/bin/python tools/parity/tracker_files.py DIR [DIR …]

Every scalar must occur once, in order. Exit code 1 if there is a difference.
"""

import json
import math
import pathlib
import struct
import sys
import zlib

from tensorboard.backend.event_processing import event_accumulator
from wandb.proto import wandb_internal_pb2 as pb


def wanted(run):
    """Step and value of every number, by name."""
    series = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        step = row.pop("step")
        for name, value in row.items():
            if value is None or isinstance(value, (int, float)):
                series.setdefault(name, []).append((step, math.nan if value is None else value))
    return series


def tensorboard(run):
    reader = event_accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def records(path):
    data = path.read_bytes()
    assert data[:7] == b":W&B\xe1\xbe\x00", "not a wandb log"
    position, content = 7, b""
    while position < len(data):
        room = 32768 - position % 32768
        if room < 7:
            position += room
            continue
        check, length, kind = struct.unpack("<IHB", data[position : position + 7])
        part = data[position + 7 : position + 7 + length]
        assert zlib.crc32(bytes([kind]) + part) == check, f"wrong checksum at byte {position}"
        position += 7 + length
        content = part if kind in (1, 2) else content + part
        if kind in (1, 4):
            record = pb.Record()
            record.ParseFromString(content)
            yield record


def wandb(run):
    (path,) = run.glob("wandb/offline-run-*/run-*.wandb")
    series, kinds = {}, []
    for record in records(path):
        kinds.append(record.WhichOneof("record_type"))
        if kinds[-1] == "history":
            items = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            assert items["_step"] == record.history.step.num
            for name, value in items.items():
                if not name.startswith("_"):
                    series.setdefault(name, []).append((record.history.step.num, value))
    assert kinds[:2] == ["header", "run"], kinds[:2]
    assert kinds.count("exit") <= 1 and (kinds.count("exit") == 0 or kinds[-1] == "exit")
    return series


def same(found, expected):
    close = lambda a, b: a == b or (math.isnan(a) and not math.isfinite(b)) or abs(a - b) <= 1e-6 * abs(b)
    return [s for s, _ in found] == [s for s, _ in expected] and all(
        close(a, b) or not math.isfinite(a) and not math.isfinite(b) for (_, a), (_, b) in zip(found, expected)
    )


def main():
    failed = False
    for run in map(pathlib.Path, sys.argv[1:]):
        expected = wanted(run)
        for name, read in (("tensorboard", tensorboard), ("wandb", wandb)):
            found = read(run)
            wrong = sorted(k for k in set(found) | set(expected) if not same(found.get(k, []), expected.get(k, [])))
            failed |= bool(wrong)
            count = sum(map(len, found.values()))
            print(f"{run}: {name}: {count} values of {len(found)} metrics", f"DIFFER: {wrong}" if wrong else "as logged")
    sys.exit(failed)


if __name__ == "__main__":
    main()
