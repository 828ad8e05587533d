"""A node's worker, in the place of Flower's SuperExec: it runs this program alone, and forks for every answer.

Flower's own would run whatever program the bundle of a run names: whoever starts runs at the SuperLink could then run
anything on the nodes. It would also start an interpreter and import PyTorch for every answer, which takes seconds. A
node uses the worker with ``--isolation process``. It leans on inner parts of Flower, whose version is pinned.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supernode.runtime import run_clientapp

from kd3a.federation import client_app


class Forks(SubprocessExecutor):
    """Starts the process of an answer by forking this one, which computes nothing itself and uses no GPU."""

    def launch(self, spec) -> LaunchResult:
        sys.stdout.flush()
        if os.fork():
            return LaunchResult.accepted()
        code = 1
        try:
            exit_handler.registered_exit_handlers.clear()  # the parent's
            run_clientapp.run_clientapp(spec.runtime_api_address, spec.token, spec.insecure, parent_pid=spec.parent_pid)
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


def work(address: str, parent: int, bundled: bool = False) -> None:
    """Serve the SuperNode at this address of the same machine, as long as process ``parent`` lives.

    With ``bundled``, the program is the one that the bundle names, as Flower has it.
    """
    if not bundled:
        run_clientapp.get_load_client_app_fn = lambda **_: lambda *_: client_app.app
    run_superexec.get_executor = lambda *_, **__: Forks()
    run_superexec.run_superexec(runtime_api_address=address, insecure=True, parent_pid=parent)
