"""A few rows in the formats of TensorBoard's own record writer and of wandb's messages: `trackers/`.

    python -m venv ~/gradus-trackers && ~/gradus-trackers/bin/pip install tensorboard==2.21.0 wandb==0.31.0
    ~/gradus-trackers/bin/python tools/parity/trackers.py

The wandb package writes its log in Go. This script frames the blocks itself, from the description of LevelDB's log.
`tracker_files.py DIR` reads gradus' files with both packages.
"""

import importlib.metadata as metadata
import json
import os
import pathlib
import struct
import tempfile
import zlib

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from wandb.proto import wandb_internal_pb2 as pb

import wandb as package
from tracker_files import records

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/gradus/tests/fixtures/parity/trackers"
STARTED = 1_700_000_000
# Values that Python and Rust print with the same digits; all are exact in single precision.
ROWS = [
    {"step": 1, "seconds": 0.5, "values": {"loss": 2.0, "rewards/chosen": -0.25, "learning_rate": 0.0}},
    {"step": 2, "seconds": 1.25, "values": {"loss": float("nan"), "grad_norm": float("inf"), "eval_reward": -1.5}},
    # The package creates its table.
    {"step": 300, "seconds": 4096.125, "values": {"loss": 0.125, "ärger": 1024.5}},
]


COLUMNS = ["row", "prompt", "completion", "reward", "bleu"]
DATA = [[1, 'Say "<b>é</b>"', "tea\n", 1.5, None], [2, "", "\u4e2d \\ /", -0.25, 3.0]]


def table():
    """The package's output for a table: the content of its file, and its entry in the history."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WANDB_SILENT"] = "true"
        run = package.init(mode="offline", project="gradus", dir=folder)
        run.log({"eval_predictions": package.Table(columns=COLUMNS, data=DATA)}, step=300)
        run.finish()
        (log,) = pathlib.Path(folder).glob("wandb/offline-run-*/run-*.wandb")
        said, sent = {}, []
        for record in records(log):
            if record.WhichOneof("record_type") == "history":
                for item in record.history.item:
                    if item.nested_key[0] == "eval_predictions":
                        said[item.nested_key[1]] = json.loads(item.value_json)
            if record.WhichOneof("record_type") == "files":
                sent += [(file.path, file.policy, file.type) for file in record.files.files]
        if not said:
            return table()  # so short a run may end before the package has written its history
        assert (said["path"], 0, 0) in sent, sent
        content = (log.parent / "files" / said["path"]).read_text()
        # The package also creates an artifact from it, with random names.
        said = {key: value for key, value in said.items() if not key.endswith("artifact_path")}
        # In the package, the number is its own count of rows. In gradus, it is the step.
        assert said["path"] == f"media/table/eval_predictions_0_{said['sha256'][:20]}.table.json", said
        said["path"] = said["path"].replace("_0_", "_300_")
        return content, said


def tensorboard(path):
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=STARTED, file_version="brain.Event:2").SerializeToString())
        for row in ROWS:
            event = Event(wall_time=STARTED + row["seconds"], step=row["step"])
            for tag, value in row["values"].items():
                event.summary.value.add(tag=tag, simple_value=value)
            writer.write(event.SerializeToString())


class Log:
    """Records in blocks of 32 KiB: check (of type and content), length, type (whole, first, middle, last), content."""

    BLOCK = 32 * 1024

    def __init__(self):
        self.data = bytearray(b":W&B\xe1\xbe\x00")
        self.number = 0

    def append(self, record):
        self.number += 1
        record.num = self.number
        record._info.stream_id = "abcd1234"
        content, first = record.SerializeToString(deterministic=True), True
        while True:
            room = self.BLOCK - len(self.data) % self.BLOCK
            if room < 7:
                self.data += bytes(room)
                continue
            part, content = content[: room - 7], content[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not content]
            self.data += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
            first = False
            if not content:
                return


def wandb(config, said):
    """The whole log, and where its second record ends."""
    log = Log()
    header = pb.Record()
    header.header.version_info.producer = "gradus"
    header.header.version_info.min_consumer = "0.70.0"
    log.append(header)
    run = pb.Record()
    run.run.run_id, run.run.project, run.run.job_type, run.run.display_name = "abcd1234", "gradus", "grpo", "happy"
    run.run.start_time.seconds = STARTED
    for key, value in config.items():
        run.run.config.update.add(key=key, value_json=json.dumps(value, separators=(",", ":")))
    log.append(run)
    end_of_run = len(log.data)
    for row in ROWS:
        items = {key: json.dumps(value) for key, value in row["values"].items()}
        items["_timestamp"] = json.dumps(STARTED + row["seconds"])
        items["_runtime"], items["_step"] = json.dumps(row["seconds"]), json.dumps(row["step"])
        summary, history = pb.Record(), pb.Record()
        nested = said if row["step"] == 300 else {}
        if nested:
            files = pb.Record()
            files.files.files.add(path=said["path"])
            log.append(files)
        items = [([key], value) for key, value in items.items()]
        # Before the last three, which every row has. The package writes them in any order.
        for key in ("_type", "sha256", "size", "path", "ncols", "nrows", "log_mode"):
            if nested:
                items.insert(-3, (["eval_predictions", key], json.dumps(nested[key])))
        for key, value in items:
            summary.summary.update.add(nested_key=key, value_json=value)
            history.history.item.add(nested_key=key, value_json=value)
        history.history.step.num = row["step"]
        log.append(summary)
        log.append(history)
    end = pb.Record()
    end.exit.runtime = 4096
    log.append(end)
    return bytes(log.data), end_of_run


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    tensorboard(OUT / "events.tfevents")
    # A record over several blocks, whose end leaves three bytes in the last block.
    content, said = table()
    assert len(said) == 7, said
    config = {"method": {"grpo": {"group_size": 2}}, "model": "gpt2", "long": "x" * 70_000}
    room = Log.BLOCK - wandb(config, said)[1] % Log.BLOCK
    config["long"] += "x" * (room - 3)
    log, end = wandb(config, said)
    assert Log.BLOCK - end % Log.BLOCK == 3, end
    (OUT / "run.wandb").write_bytes(log)
    named = lambda value: value if abs(value) < float("inf") else json.dumps(value)
    fixture = {
        "meta": {
            "script": "tools/parity/trackers.py",
            "versions": {name: metadata.version(name) for name in ("tensorboard", "wandb")},
        },
        "started": STARTED,
        "id": "abcd1234",
        "name": "happy",
        "config": {**config, "long": len(config["long"])},
        "table": {"columns": COLUMNS, "data": DATA, "content": content},
        "rows": [{**row, "values": {key: named(value) for key, value in row["values"].items()}} for row in ROWS],
    }
    (OUT / "fixture.json").write_text(json.dumps(fixture, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
