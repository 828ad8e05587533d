"""The ClientApp of a source. Its node's configuration names the file of its domain and the folder of its state."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from kd3a.errors import UserError
from kd3a.federation import files, wire
from kd3a.federation.flower import response, unpacked
from kd3a.federation.source import answer
from kd3a.settings import Hardware

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one order of the target."""
    told = context.node_config
    if not {"domain", "state"} <= set(told):
        raise UserError('This node names no domain: start it with --node-config \'domain="…" state="…"\'.')
    holding = files.read(Path(told["domain"]))
    hardware = Hardware(device=told.get("device", "auto"), threads=told.get("threads", 1))
    text = message.content["order"]["text"]
    given = answer(holding, Path(told["state"]), text, unpacked(message.content, "the target"), hardware)
    return Message(response(wire.encode(given.upload), given.loss), reply_to=message)
