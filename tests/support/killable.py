"""A process that indexes when it is told to, in a child of its own that can be killed: imports are paid once.

It reads lines of JSON {"library", "model", "files", "log"} and forks a child for each, which logs its process id, the
pages it has stored, and errors. It prints how the child ended.
"""

from __future__ import annotations

import json
import os
import sys

import torch

import randslot
from randslot.library import ingest
from randslot.library.library import Library

torch.set_num_threads(1)
ingest.SAFE_SECONDS = 0.05


def index(order: dict[str, str], model: object) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(**what: object) -> None:
        os.write(log, json.dumps(what).encode() + b"\n")

    say(pid=os.getpid())
    try:
        with Library(order["library"], model) as library:
            library.add(order["files"], batch=2, workers=1, progress=lambda now: say(pages=now.pages_done))
    except randslot.RandSlotError as error:
        say(error=str(error))


models: dict[str, object] = {}
for line in sys.stdin:
    order = json.loads(line)
    if order["model"] not in models:
        models[order["model"]] = randslot.load(order["model"])
    child = os.fork()
    if not child:
        index(order, models[order["model"]])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(json.dumps(os.WIFSIGNALED(status)), flush=True)
