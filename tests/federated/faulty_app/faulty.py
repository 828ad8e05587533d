"""A source that fails as its node's configuration says: ``faults`` is "round=fault ..."; see FAULTS and below."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from kd3a.federation import client_app, wire
from kd3a.federation.flower import response, unpacked

app = ClientApp()

FAULTS = {
    "nan": lambda t: torch.full_like(t, torch.nan),
    "shape": lambda t: t[:-1],
    "dtype": lambda t: t.half(),
    "bytes": lambda t: torch.cat([t.flatten()] * (10_000_000 // t.nbytes)),
}


@app.train()
def train(message: Message, context: Context) -> Message:
    """The honest answer, or what is made of it. A fault happens once."""
    faults = dict(word.split("=") for word in str(context.node_config.get("faults", "")).split())
    fault = faults.get(message.metadata.group_id, "")
    done = Path(context.node_config["state"]) / f"fault-{message.metadata.group_id}-{fault}"
    if not fault or done.exists():
        return client_app.train(message, context)
    done.parent.mkdir(exist_ok=True)
    done.touch()
    if fault.startswith("late"):
        time.sleep(float(fault.removeprefix("late")))
    while fault == "hold" and not (done.parent / "go").exists():
        time.sleep(0.2)
    answer = client_app.train(message, context)
    if fault in FAULTS:
        upload = wire.decode(unpacked(answer.content, "me"), "me")
        name, tensor = max(upload["params"].items(), key=lambda pair: pair[1].numel())
        upload["params"][name] = FAULTS[fault](tensor)
        return Message(response(wire.encode(upload), 0.0), reply_to=message)
    return answer
