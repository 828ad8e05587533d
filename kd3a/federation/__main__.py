"""``python -m kd3a.federation``: a federation on one machine, and the keys of one on several."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path

from kd3a import cli, data
from kd3a.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Entry point. A user's mistake prints one sentence and gives exit code 2; an interrupt stops every process."""
    arguments = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return arguments.command(arguments)
    except ModuleNotFoundError as error:
        print(f"kd3a: {error.name} is not installed; 'make federate' sets it up.", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"kd3a: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kd3a: stopped, and all processes of the federation with it.", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m kd3a.federation", description="KD3A with sources on other machines.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="a SuperLink and its SuperNodes on this machine, beside the in-process run")
    cli.run_options(demo, target="mnist_m")
    demo.add_argument("--folder", type=Path, default=Path("_build/federation"), help="emptied first, then written into")
    demo.add_argument("--save", action="store_true", help="write the comparison into results/federation.json")
    demo.set_defaults(command=do_demo)
    simulate = commands.add_parser("simulate", help="the run in Flower's simulation engine, on Ray")
    cli.run_options(simulate, target="mnist_m")
    simulate.add_argument("--folder", type=Path, default=Path("_build/simulation"), help="emptied first")
    simulate.add_argument("--cpus", type=int, default=1, help="CPUs for each source at work (default: 1)")
    simulate.add_argument("--gpus", type=float, default=0.0, help="share of a GPU for each (default: 0)")
    simulate.set_defaults(command=do_simulate)
    scale = commands.add_parser("scale", help="seconds and bytes of a round with more and more sources, in one process")
    cli.run_options(scale, target="mnist_m")
    scale.add_argument("--sources", type=int, nargs="+", default=[2, 4, 8, 16, 32], help="how many")
    scale.add_argument("--save", action="store_true", help="write into results/federation.json")
    scale.set_defaults(command=do_scale)
    certificates = commands.add_parser("certificates", help="a CA and the SuperLink's certificate")
    certificates.add_argument("folder", type=Path)
    certificates.add_argument("--host", action="append", default=[], help="name or address that nodes connect to")
    certificates.set_defaults(command=do_certificates)
    key = commands.add_parser("key", help="a node's pair of keys: FOLDER/key and FOLDER/key.pub")
    key.add_argument("folder", type=Path)
    key.set_defaults(command=do_key)
    worker = commands.add_parser("worker", help="answers for a SuperNode of this machine that has --isolation process")
    worker.add_argument("port", type=int, help="the SuperNode's --port")
    worker.add_argument("node", type=int, help="number of its process; the worker ends with it")
    worker.add_argument("--bundled", action="store_true", help="run any program that a bundle names, not kd3a's own")
    worker.set_defaults(command=do_worker)
    return top


def do_worker(arguments: argparse.Namespace) -> int:
    from kd3a.federation.worker import work

    work(f"127.0.0.1:{arguments.port}", arguments.node, arguments.bundled)
    return 0


def do_demo(arguments: argparse.Namespace) -> int:
    from kd3a.federation import demo, report

    run = cli.run_of(arguments)
    result = demo.compare(run, data.load(run.dataset, run.target), arguments.folder, arguments.scale)
    print(report.table(result))
    if arguments.save:
        report.Measured(comparison=result).write()
    return 1 if result.differing else 0


def do_simulate(arguments: argparse.Namespace) -> int:
    from kd3a.federation.simulation import simulate

    run, task = cli.run_of(arguments), data.load(arguments.dataset, arguments.target)
    shutil.rmtree(arguments.folder, ignore_errors=True)
    record = simulate(run, task, arguments.folder, arguments.cpus, arguments.gpus, arguments.scale)
    print(json.dumps(record))
    return 0


def do_scale(arguments: argparse.Namespace) -> int:
    from kd3a.federation import report
    from kd3a.federation.scaling import scaling

    run = cli.run_of(arguments)
    found = scaling(run, data.load(run.dataset, run.target), arguments.sources)
    if arguments.save:
        report.Measured(scaling=found).write()
    return 0


def do_certificates(arguments: argparse.Namespace) -> int:
    from kd3a.federation import keys

    keys.server(arguments.folder, (*arguments.host, *keys.LOOPBACK))
    print(f"Wrote ca.crt, server.crt and server.key into {arguments.folder}; nodes need ca.crt alone.")
    return 0


def do_key(arguments: argparse.Namespace) -> int:
    from kd3a.federation import keys

    print(f"Wrote {keys.node_keys(arguments.folder, 'key')} and key.pub; the SuperLink's owner registers key.pub.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
