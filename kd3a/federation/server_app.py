"""The ServerApp: the target. The run's configuration names a plan, a JSON file on the target's machine."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from kd3a.errors import UserError
from kd3a.federation import files
from kd3a.federation.flower import FlowerExchange
from kd3a.federation.order import admit
from kd3a.federation.target import Plan
from kd3a.records import Record
from kd3a.runs import execute, make_run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the run of the plan; the record, or the reason why there is none, is left in the plan's folder."""
    plan = read_plan(Path(str(context.run_config["plan"])))
    outcome = {"error": "The run was stopped."}
    try:
        outcome = {"record": federate(grid, plan)}
    except UserError as error:
        outcome = {"error": str(error)}
        raise
    except Exception as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        draft = plan.out / "outcome.draft"
        draft.write_text(json.dumps(outcome))
        draft.replace(plan.out / "outcome.json")


def read_plan(path: Path) -> Plan:
    if not path.is_file():
        raise UserError(f"There is no plan {path}; name one with --run-config 'plan=\"…\"'.")
    return Plan.read(json.loads(path.read_text()), str(path))


def federate(grid: Grid, plan: Plan) -> Record:
    """The target's whole run: the same as in one process, but for the exchange."""
    holding = files.read(plan.domain)
    run = make_run(plan.dataset, holding.domain.name, plan.method, plan.seed, plan.training, plan.config)
    admit(run)
    task = holding.task(plan.sources, holding.domain.name)
    exchange = FlowerExchange(grid, run, plan, task)
    return execute(run, task, plan.hardware, plan.dataset, plan.scale, quiet=True, exchange=exchange)
