"""The ClientApp of a source. Its node's configuration names the file of its domain and the folder of its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from kd3a.errors import UserError
from kd3a.federation import files, wire
from kd3a.federation.flower import response, unpacked
from kd3a.federation.source import answer
from kd3a.settings import Hardware

app = ClientApp()


def told(context: Context) -> dict[str, Any]:
    """What the node's owner decided. In a simulation the engine numbers the nodes: number i holds the i-th domain."""
    own = dict(context.node_config)
    if "domain" not in own and "partition-id" in own and context.run_config.get("simulated"):
        folder = Path(str(context.run_config["simulated"]))
        domains = sorted((folder / "sources").glob("*.safetensors"))
        own |= {"domain": str(domains[own["partition-id"]]), "state": str(folder / "state")}
    if not {"domain", "state"} <= set(own):
        raise UserError('This node names no domain: start it with --node-config \'domain="…" state="…"\'.')
    return own


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one order of the target."""
    own = told(context)
    holding = files.read(Path(own["domain"]))
    hardware = Hardware(device=own.get("device", "auto"), threads=own.get("threads", 1))
    text = message.content["order"]["text"]
    given = answer(holding, Path(own["state"]), text, unpacked(message.content, "the target"), hardware)
    return Message(response(wire.encode(given.upload), given.loss), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say the name of the domain."""
    return Message(RecordDict({"name": ConfigRecord({"name": Path(told(context)["domain"]).stem})}), reply_to=message)
