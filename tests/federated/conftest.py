"""These tests start real processes; they are collected where Flower is installed: see 'make testfederated'."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["faulty_app/*"] if find_spec("flwr") else ["*"]
