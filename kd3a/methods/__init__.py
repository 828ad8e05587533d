"""The registry of methods. Adding one means one file and one line here."""

from __future__ import annotations

from kd3a.methods.base import Method
from kd3a.methods.caida import CAiDA
from kd3a.methods.cmss import CMSS
from kd3a.methods.dael import DAEL
from kd3a.methods.decision import DECISION
from kd3a.methods.dsbn import DSBN
from kd3a.methods.fact import FACT
from kd3a.methods.fada import FADA
from kd3a.methods.fedavg import FedAvg
from kd3a.methods.fedavg_shot import FedAvgSHOT
from kd3a.methods.fedprox import FedProx
from kd3a.methods.kd3a import KD3A
from kd3a.methods.m3sda import M3SDA
from kd3a.methods.mdan import MDAN
from kd3a.methods.oracle import Oracle
from kd3a.methods.shot import SHOT
from kd3a.methods.source_only import SourceOnly

ALL = (
    Oracle,
    SourceOnly,
    FedAvg,
    FedProx,
    KD3A,
    MDAN,
    M3SDA,
    DAEL,
    CMSS,
    DSBN,
    SHOT,
    FADA,
    FedAvgSHOT,
    DECISION,
    CAiDA,
    FACT,
)
METHODS: dict[str, type[Method]] = {method.name: method for method in ALL}
