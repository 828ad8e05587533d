"""The registry of methods. Adding one means one file and one line here."""

from __future__ import annotations

from kd3a.methods.base import Method
from kd3a.methods.fedavg import FedAvg
from kd3a.methods.kd3a import KD3A
from kd3a.methods.oracle import Oracle
from kd3a.methods.source_only import SourceOnly

METHODS: dict[str, type[Method]] = {m.name: m for m in (Oracle, SourceOnly, FedAvg, KD3A)}
