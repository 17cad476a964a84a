"""Annotations as Argilla's and Label Studio's own packages write them, for the import of `gradus annotate`; and a check that they read
its exports.

    pip install argilla==2.8.0 label-studio-sdk==2.1.2
    python tools/parity/annotation_tools.py crates/gradus-web/tests/fixtures
    python tools/parity/annotation_tools.py --check argilla.json label-studio.json
"""

import argparse
import importlib.metadata
import json
import pathlib
import uuid

import argilla
from label_studio_sdk.label_interface import LabelInterface

ANSWER = "größer 世界 is größer"
CONFIG = """<View>
  <Text name="answer1" value="$answer1"/>
  <Text name="answer2" value="$answer2"/>
  <Labels name="spans" toName="answer1"><Label value="Irrelevant"/><Label value="Redundant"/><Label value="Wrong-Grounding"/></Labels>
  <Choices name="1v2" toName="answer1"><Choice value="first"/><Choice value="tie"/><Choice value="bad"/><Choice value="second"/></Choices>
  <Choices name="1v2-strength" toName="answer1"><Choice value="slightly"/><Choice value="better"/><Choice value="much"/></Choices>
  <Choices name="no_error" toName="answer1"><Choice value="yes"/><Choice value="no"/></Choices>
  <Rating name="tone" toName="answer1" maxRating="7"/>
  <TextArea name="correction" toName="answer1"/>
  <TextArea name="feedback" toName="answer1"/>
  <TextArea name="missing" toName="answer1"/>
</View>"""


def argilla_record():
    ada, bob = (uuid.UUID(int=i + 1, version=4) for i in range(2))
    said = [
        ("spans", [{"start": 7, "end": 9, "label": "Irrelevant"}], ada),
        ("1v2", "second", ada),
        ("tone", 5, ada),
        ("correction", "größer", ada),
        ("no_error", "yes", bob),
        ("1v2", "tie", bob),
    ]
    responses = [argilla.Response(name, value, user_id=user, status="submitted") for name, value, user in said]
    responses.append(argilla.Response("tone", 1, user_id=uuid.UUID(int=9, version=4), status="draft"))
    record = argilla.Record(id="7", fields={"question": "Q?", "answer1": ANSWER, "answer2": "b"}, responses=responses)
    return json.loads(json.dumps(record.to_dict(), default=str))


def label_studio_task():
    interface = LabelInterface(CONFIG)
    control = lambda name: interface.get_control(name)
    regions = [
        control("spans").label(label="Irrelevant", start=7, end=9),
        control("1v2").label(label="second"),
        control("tone").label(rating=5),
        control("correction").label(text=["größer"]),
    ]
    result = [region._dict() for region in regions]
    task = {"id": 7, "data": {"question": "Q?", "answer1": ANSWER, "answer2": "b"}, "predictions": []}
    task["annotations"] = [{"id": 1, "completed_by": 3, "was_cancelled": False, "lead_time": 2.5, "result": result}]
    assert interface.validate_annotation(task["annotations"][0]), interface._validate_object
    return task


def check(argilla_file, label_studio_file):
    rows = json.loads(pathlib.Path(argilla_file).read_text())
    for row in rows:
        back = json.loads(json.dumps(argilla.Record.from_dict(row).to_dict(), default=str))
        for part in ("id", "fields", "metadata"):
            assert back[part] == row[part], (part, back[part], row[part])
        strip = lambda found: {name: [{"value": one["value"], "user_id": one["user_id"]} for one in all_] for name, all_ in found.items()}
        assert strip(back["responses"]) == strip(row["responses"]), back["responses"]
    interface = LabelInterface(CONFIG)
    tasks = json.loads(pathlib.Path(label_studio_file).read_text())
    for task in tasks:
        assert interface.validate_task({"data": task["data"]}), task
        for annotation in task["annotations"]:
            assert interface.validate_annotation(annotation), interface.validate_prediction(annotation, return_errors=True)
    print(f"the packages accept {len(rows)} records and {len(tasks)} tasks")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--check", nargs=2)
    arguments = parser.parse_args()
    if arguments.check:
        return check(*arguments.check)
    versions = {name: importlib.metadata.version(name) for name in ("argilla", "label-studio-sdk")}
    found = {"generator": "tools/parity/annotation_tools.py", "versions": versions, "argilla": argilla_record(), "label_studio": label_studio_task()}
    path = arguments.folder / "annotation-tools.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
