"""Rounds as Flower's messages. An array record carries the safetensors bytes as they are; Flower does not read them."""

from __future__ import annotations

import time
from typing import ClassVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from kd3a.channel import RefusedMessage
from kd3a.domains import Task
from kd3a.federation.target import PAUSE, Plan, RemoteExchange, Reply
from kd3a.runs import Run
from kd3a.trainer import Stage

FORMAT = "safetensors"


def packed(data: bytes) -> ArrayRecord:
    return ArrayRecord({"message": Array(dtype="uint8", shape=(len(data),), stype=FORMAT, data=data)})


def unpacked(content: RecordDict, sender: str) -> bytes:
    """The bytes of a message that came from elsewhere."""
    arrays = content.array_records.get("tensors", {})
    if set(arrays) != {"message"} or arrays["message"].stype != FORMAT:
        raise RefusedMessage(f"Message of {sender} holds something else than one array of {FORMAT}.")
    return arrays["message"].data


def question(text: str, data: bytes) -> RecordDict:
    """What the target sends: an order and the shared model."""
    return RecordDict({"order": ConfigRecord({"text": text}), "tensors": packed(data)})


def response(data: bytes, loss: float) -> RecordDict:
    """What a source sends: its upload and the loss of its training."""
    return RecordDict({"tensors": packed(data), "log": MetricRecord({"loss": loss})})


class FlowerExchange(RemoteExchange):
    """Sources are SuperNodes, whose numbers the plan knows: a node's key decides whose uploads it can send."""

    provenance: ClassVar = {"executor": "flower", "command": "flwr run"}  # the process's own holds a token

    def __init__(self, grid: Grid, run: Run, plan: Plan, task: Task):
        super().__init__(run, plan, task)
        self.grid, self.nodes = grid, dict(plan.nodes)
        if not self.nodes:
            self.introduce()

    def introduce(self) -> None:
        """Ask the nodes of a simulation for their names; nodes with keys are known by these."""
        numbers = list(self.grid.get_node_ids())
        letters = [Message(RecordDict(), number, "query") for number in numbers]
        for letter in self.grid.send_and_receive(letters, timeout=self.plan.deadline):
            if not letter.has_error():
                self.nodes[str(letter.content["name"]["name"])] = letter.metadata.src_node_id

    def online(self) -> list[str]:
        known = set(self.grid.get_node_ids())
        return [name for name in self.sources if self.nodes.get(name) in known]

    def ask(self, stage: Stage, text: str, data: dict[str, bytes]) -> dict[str, Reply]:
        end = time.monotonic() + self.plan.deadline
        pending: dict[str, str] = {}  # a message's number -> its receiver
        for name, content in data.items():
            about = {"ttl": self.plan.deadline, "group_id": str(stage.round)}
            letter = Message(question(text, content), self.nodes[name], "train", **about)
            pending |= {number: name for number in self.grid.push_messages([letter]) if number}
        replies: dict[str, Reply] = {}
        while pending and time.monotonic() < end:
            for letter in self.grid.pull_messages(list(pending)):
                name = pending.pop(letter.metadata.reply_to_message_id)
                replies[name] = self.reading(letter, name)
            time.sleep(PAUSE)
        return replies

    @staticmethod
    def reading(letter, name: str) -> Reply:
        if letter.has_error():
            return Reply(error=letter.error.reason)
        try:
            loss = letter.content.metric_records.get("log", {}).get("loss")
            return Reply(unpacked(letter.content, name), loss)
        except RefusedMessage as error:
            return Reply(error=str(error))
