"""These tests start real processes; they are collected where Flower is installed: see 'make testfederated'."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = ["faulty_app/*"] if find_spec("flwr") else ["*"]
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # for all clusters, before any import


@pytest.fixture
def cluster(digits_cache):
    """The address of a cluster with one node, as an administrator starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("ray")
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # a short path: for sockets
        options = [f"--port={port}", "--num-cpus=2", "--object-store-memory=83886080", f"--temp-dir={folder}"]
        options += ["--include-dashboard=false", "--disable-usage-stats"]
        command = [program, "start", "--head", "--block", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert any("Ray runtime started" in line for line in process.stdout)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)
