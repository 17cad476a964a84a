"""An environment for gradus: a quiz about capitals. Needs nothing but Python.

Try it alone: printf '{"id":1,"do":"reset","episode":"a","seed":1,"row":{}}\n' | python3 capitals.py
"""

import json
import random
import sys

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima"}

episodes = {}  # by name: the countries that are asked for, and how many answers were right


def reset(asked):
    countries = random.Random(asked["seed"]).sample(sorted(CAPITALS), 2)
    episodes[asked["episode"]] = {"countries": countries, "right": 0}
    return {"message": f"What is the capital of {countries[0]}?"}


def step(asked):
    episode = episodes[asked["episode"]]
    is_right = CAPITALS[episode["countries"].pop(0)].lower() in asked["turn"]["text"].lower()
    episode["right"] += is_right
    if not episode["countries"]:
        return {"done": True, "metrics": {"right": is_right}}
    said = "Right." if is_right else "Wrong."
    return {"replies": f"{said} And of {episode['countries'][0]}?", "metrics": {"right": is_right}}


def close(asked):
    episode = episodes.pop(asked["episode"], None)
    return {"reward": episode["right"] / 2 if episode else None}


def describe(asked):
    return {"tools": [], "deterministic": True}


for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = {"describe": describe, "reset": reset, "step": step, "close": close}[asked["do"]](asked)
    except Exception as error:  # the episode fails, and others go on
        answer = {"error": repr(error)}
    print(json.dumps({"id": asked["id"], **answer}), flush=True)
