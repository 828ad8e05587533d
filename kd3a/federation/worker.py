"""A SuperExec that has imported everything: it forks for every answer where Flower's own starts a new interpreter.

PyTorch takes seconds to import, an answer of a small network a fraction of one. A node uses it with ``--isolation
process``; Flower's own ``flower-superexec`` does the same, slower. It leans on inner parts of Flower, whose version is
pinned for that reason.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supernode.runtime.run_clientapp import run_clientapp

from kd3a.federation import client_app  # noqa: F401 (imported here, it is there in every child)


class Forks(SubprocessExecutor):
    """Starts the process of an answer by forking this one, which computes nothing itself and uses no GPU."""

    def launch(self, spec) -> LaunchResult:
        sys.stdout.flush()
        if os.fork():
            return LaunchResult.accepted()
        code = 1
        try:
            exit_handler.registered_exit_handlers.clear()  # the parent's
            run_clientapp(spec.runtime_api_address, spec.token, spec.insecure, parent_pid=spec.parent_pid)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def reconcile(self) -> None:
        """Take note of children that have ended."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def work(address: str, parent: int) -> None:
    """Serve the SuperNode at this address of the same machine, as long as process ``parent`` lives."""
    run_superexec.get_executor = lambda *_, **__: Forks()
    run_superexec.run_superexec(runtime_api_address=address, insecure=True, parent_pid=parent)
