"""Ray as the executor of a grid: a cluster of machines, shares of GPUs, nodes that come and go."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from kd3a import worker
from kd3a.errors import UserError
from kd3a.executors import RETRIES, Call, cores, lost


def answer_from_node(text: str) -> tuple[str, str]:
    """A worker's answer on Ray, and the node that gave it."""
    import ray

    return ray.get_runtime_context().get_node_id(), worker.answer(text)


def check(address: str) -> None:
    """Refuse an address where nobody answers: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError):
        expected = "expected auto, host:port or ray://host:port of a cluster that runs"
        raise UserError(f"--address {address}: nobody answers there; {expected}.") from None


class Ray:
    """Ray tasks, each with ``threads`` CPUs and a share of a GPU: on a cluster that runs at ``address``, else on one of
    its own on this machine, without dashboard or usage report, which answers only to a secret of this process."""

    def __init__(self, threads: int = 1, workers: int | None = None, address: str = "", gpus: float = 0.0):
        if not address and "ray" not in sys.modules:  # Ray listens to the network: not to strangers
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        try:
            import ray
        except ImportError:
            raise UserError("--executor ray needs the package ray: pip install --editable '.[ray]'.") from None
        self.ray, self.threads, self.workers, self.address, self.gpus = ray, threads, workers, address, gpus
        if not address:
            self.workers = workers or max(1, cores() // threads)
        else:
            check(address)
        self.nodes: dict[int, str] = {}
        self.forgetting: list[Any] = []

    def __enter__(self) -> Ray:
        with contextlib.ExitStack() as stack:
            settings = {} if self.address else self._own_cluster(stack)
            try:
                self.ray.init(self.address or "local", log_to_driver=False, logging_level=logging.ERROR, **settings)
            except Exception as error:  # Ray has all kinds of them for a cluster that does not start or answer
                why = str(error).strip().split("\n")[0]
                raise UserError(f"Ray cannot be used at {self.address or 'this machine'}: {why}") from None
            stack.callback(self.ray.shutdown)
            if self.gpus and not self.ray.cluster_resources().get("GPU"):
                if not self.address:
                    raise UserError("Ray sees no GPU on this machine: leave out --gpus-per-run to train on the CPU.")
                print("The cluster shows no GPU yet; runs wait until it has one.", file=sys.stderr)
            self.closing = stack.pop_all()
        return self

    def _own_cluster(self, stack: contextlib.ExitStack) -> dict[str, Any]:
        return {
            "num_cpus": self.workers * self.threads,
            "include_dashboard": False,
            "object_store_memory": 80 * 2**20,  # only text goes through it
            "_temp_dir": stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)),
        }

    def __exit__(self, *_: object) -> None:
        with self.closing:
            if self.forgetting:
                self.ray.wait(self.forgetting, num_returns=len(self.forgetting), timeout=10)

    def outcomes(self, calls: Iterable[Call]) -> Iterator[tuple[int, Any]]:
        task = self.ray.remote(answer_from_node)
        task = task.options(num_cpus=self.threads, num_gpus=self.gpus, max_retries=RETRIES)
        calls, pending = iter(calls), {}
        while True:
            while (self.workers is None or len(pending) < self.workers) and (todo := next(calls, None)):
                pending[task.remote(todo[1])] = todo[0]
            if not pending:
                return
            (done, *_), _ = self.ray.wait(list(pending))
            number = pending.pop(done)
            yield number, self._heard(number, done)

    def _heard(self, number: int, done: Any) -> Any:
        try:
            self.nodes[number], text = self.ray.get(done)
        except self.ray.exceptions.RayTaskError:
            raise  # a mistake of ours, not the worker's death
        except self.ray.exceptions.RayError as error:
            return lost(type(error).__name__)
        return worker.heard(text)

    def forget(self, number: int, key: str) -> None:
        """The checkpoint lies in the cache of the node that trained the run."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(self.nodes[number], soft=True)
        task = self.ray.remote(answer_from_node).options(num_cpus=0, scheduling_strategy=there)
        self.forgetting.append(task.remote(worker.call("forget", key=key)))
