"""The command line: thin commands over the module."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from kd3a import data, reconstructions, records
from kd3a.data.files import digest
from kd3a.domains import Domain, Part
from kd3a.errors import UserError, choose, listing
from kd3a.executors import Spread
from kd3a.federation.files import export
from kd3a.methods import METHODS
from kd3a.reconstructions import results_of
from kd3a.runs import Run, execute, forget, make_run, run_from
from kd3a.settings import Hardware, Training
from kd3a.shards import Shard
from kd3a.study import load_study, shipped_for
from kd3a.traffic import in_words, traffic
from kd3a.trainer import pick_device


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``kd3a``. A user's mistake prints one sentence and gives exit code 2."""
    arguments = parser().parse_args(argv)
    try:
        return arguments.command(arguments) or 0
    except UserError as error:
        print(f"kd3a: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("kd3a: stopped; the same command goes on from the last round.", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="kd3a",
        description="KD3A: decentralised domain adaptation by knowledge distillation. Re-run any study of the book.",
        epilog="Example: kd3a run --dataset digits --target mnist_m --method kd3a --seed 0 --scale quick",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = _command(commands, "run", do_run, "train one method on one target and print its record")
    run_options(run)
    run.add_argument("--json", action="store_true", help="print exactly one JSON record on stdout and nothing else")
    run.add_argument("--out", type=Path, help="append the record to this .jsonl file (not trained again if there)")
    _hardware(run)

    study = _command(commands, "study", do_study, "train what is missing of a params file and print its table")
    study.add_argument("params", type=Path, help="for example params/digits/quick.yaml")
    study.add_argument(
        "--only", action="append", default=[], metavar="KEY=VALUE", help="only method=…, target=…, seed=… or row=…"
    )
    study.add_argument("--results", type=Path, help="folder of the records (default: results/)")
    study.add_argument("--no-train", action="store_true", help="only print the table of what is recorded")
    study.add_argument("--if-there", action="store_true", help="pass over a study whose data are not there, and say so")
    study.add_argument(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="train only part I (from 1) of N of the runs, for job arrays; the same --only for all parts",
    )
    _spread(study)
    _hardware(study)

    methods = _command(commands, "methods", do_methods, "list the methods, what each needs and what it sends")
    methods.add_argument("name", nargs="?", help="one method, with its settings")
    methods.add_argument("--dataset", default="digits", help="count bytes for this dataset (default: digits)")
    methods.add_argument("--scale", default="cpu", help="and for the network and rounds of this scale (default: cpu)")
    methods.add_argument("--data", type=Path, help="folder of downloaded data (default: KD3A_DATA)")

    _command(commands, "datasets", do_datasets, "list the datasets, their domains and what is available")

    tool = _command(commands, "data", do_data, "prepare, check, show or export a dataset")
    actions = ("prepare", "build", "check", "show", "export")
    tool.add_argument("action", choices=actions, help="build is another word for prepare; export: a file per domain")
    tool.add_argument("name", nargs="?", default="digits", help="dataset (default: digits)")
    tool.add_argument("--data", type=Path, help="folder of downloaded data (default: KD3A_DATA)")
    tool.add_argument("--out", type=Path, help="picture that 'show' writes, or folder of 'export'")

    tidy = _command(commands, "records", do_records, "put records of several folders together")
    tidy.add_argument("action", choices=("merge",), help="add what is new; of two records of a run the first stays")
    tidy.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a results folder of a shard or machine")
    tidy.add_argument("--into", type=Path, help="folder of the records (default: results/)")

    verify = _command(commands, "verify", do_verify, "train recorded runs again and compare")
    verify.add_argument("files", nargs="*", type=Path, help="record files (default: results/*.jsonl)")
    verify.add_argument("--sample", type=int, default=1, metavar="N", help="how many runs, drawn at random (default 1)")
    verify.add_argument("--seed", type=int, default=0, help="seed of the draw")
    verify.add_argument(
        "--tolerance",
        type=float,
        default=0.02,
        help="difference in accuracy allowed on another machine, even where seeds differ less (default 0.02)",
    )
    _hardware(verify)
    return top


def _command(commands, name: str, function, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(command=function)
    return command


def _spread(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "who trains", "Records are the same whoever does; this process alone writes them."
    )
    group.add_argument("--executor", help="here (default), processes (on this machine) or ray (on a cluster)")
    group.add_argument("--workers", metavar="N", help="runs at a time (default: one per core); alone, means processes")
    group.add_argument("--address", help="ray: a cluster that runs, auto or ray://HOST:10001 (default: start one here)")
    group.add_argument("--gpus-per-run", metavar="SHARE", help="ray: share of a GPU for each run, such as 0.25")


def spread_of(arguments: argparse.Namespace) -> Spread:
    told = {name: getattr(arguments, name) for name in Spread.model_fields}
    told["executor"] = told["executor"] or ("processes" if told["workers"] else "here")
    return Spread.read({name: value for name, value in told.items() if value is not None})


def run_options(command: argparse.ArgumentParser, target: str | None = None) -> None:
    """What :func:`run_of` reads; without a default, the target must be named."""
    add = command.add_argument
    add("--dataset", default="digits", help="dataset (default: digits); see 'kd3a datasets'")
    domain = "domain to adapt to; all other domains are sources" + (f" (default: {target})" if target else "")
    add("--target", required=target is None, default=target, help=domain)
    add("--method", default="kd3a", help="method (default: kd3a); see 'kd3a methods'")
    add("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    add("--scale", default="quick", help="settings of params/<dataset>/<scale>.yaml (default: quick)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting; may be given repeatedly")


def _hardware(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("where it computes")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    group.add_argument("--precision", default="auto", help="auto, float32 or bfloat16 (default: auto)")
    group.add_argument("--compile", action="store_true", help="compile the networks with torch.compile")
    group.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    group.add_argument("--data", type=Path, help="folder of downloaded data (default: KD3A_DATA)")
    group.add_argument("--quiet", action="store_true", help="no progress bar")


def hardware_of(arguments: argparse.Namespace, here: bool = True) -> Hardware:
    names = ("device", "precision", "compile", "threads")
    hardware = Hardware.read({name: getattr(arguments, name) for name in names})
    if here:
        pick_device(hardware.device)  # an absent one is told before anything is loaded
    return hardware


def pairs(texts: list[str], option: str) -> list[tuple[str, str]]:
    for text in texts:
        if "=" not in text:
            raise UserError(f"{option} {text}: expected KEY=VALUE.")
    return [tuple(text.split("=", 1)) for text in texts]


def run_of(arguments: argparse.Namespace) -> Run:
    """The run that the options describe: the scale's settings, then the method's own, then ``--set``."""
    domains = choose("dataset", arguments.dataset, data.DATASETS).DOMAINS
    domains = domains or data.find(arguments.dataset, arguments.data).DOMAINS  # a folder's own
    choose(f"target of {arguments.dataset}", arguments.target, domains)
    method = choose("method", arguments.method, METHODS)
    study = shipped_for(arguments.dataset, arguments.scale)
    training = study.training.model_dump()
    config = next((entry.config for entry in study.methods if entry.method == arguments.method), {}).copy()
    for key, text in pairs(arguments.set, "--set"):
        try:
            value: Any = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"--set {key}={text}: the value cannot be read; write it as in a YAML file.") from None
        if key in Training.model_fields:
            training[key] = value
        elif key in method.Config.model_fields:
            config[key] = value
        else:
            known = listing([*Training.model_fields, *method.Config.model_fields])
            raise UserError(f"Unknown setting {key!r} of method {arguments.method}: choose one of {known}.")
    checked = Training.read(training, "--set")
    return make_run(arguments.dataset, arguments.target, arguments.method, arguments.seed, checked, config)


def do_run(arguments: argparse.Namespace) -> None:
    run, hardware = run_of(arguments), hardware_of(arguments)
    task = data.load(run.dataset, run.target, arguments.data)
    key = run.key(task.sha256)
    quiet = arguments.quiet or arguments.json
    record = execute(run, task, hardware, run.dataset, arguments.scale, quiet, out=arguments.out)
    forget(key)
    if arguments.json:
        print(json.dumps(record))
        return
    for entry in record["epochs"]:
        weights = "  ".join(f"{name} {weight:.2f}" for name, weight in entry["weights"].items())
        print(
            f"epoch {entry['epoch']:3d}  accuracy {entry['target_accuracy']:.3f}  loss {entry['loss']:.3f}  {weights}"
        )
    sent = sum(entry["bytes_up"] + entry["bytes_down"] for entry in record["epochs"]) / 1e6
    print(
        f"{run.method} → {run.target}: accuracy {record['target_accuracy']:.3f} at the last epoch, "
        f"{sent:.1f} MB exchanged, {record['seconds']:.0f} s (record {key})"
    )


def do_study(arguments: argparse.Namespace) -> int:
    spread, shard = spread_of(arguments), Shard.parse(arguments.shard)
    hardware = spread.hardware(hardware_of(arguments, here=spread.executor != "ray"))
    study = load_study(arguments.params, arguments.data)
    only: dict[str, set[str]] = {}
    for key, value in pairs(arguments.only, "--only"):
        only.setdefault(key, set()).add(value)
    results = results_of(study, arguments.results, only, shard)
    if arguments.if_there:
        try:
            results.task(study.domains()[0], arguments.data)
        except UserError as error:
            print(f"{study.study}, {study.scale} is passed over. {error}")
            return 0
    ended: Counter[str] = Counter()
    if not arguments.no_train:
        with spread.open(hardware.threads) as executor:
            ended = results.train(
                hardware, arguments.data, arguments.quiet, lambda line: print(line, flush=True), executor
            )
        if ended["busy"]:
            print(f"{ended['busy']} runs are being trained by other processes.")
    print(f"\n{results.text()}")
    return int(ended["lost"] > 0)


def do_records(arguments: argparse.Namespace) -> None:
    into = arguments.into or records.ROOT / "results"
    for folder in arguments.folders:
        for name, (new, odd) in records.merge(folder, into).items():
            print(f"{folder / name}: {new} new record{'s' * (new != 1)}")
            for key, why in odd.items():
                print(f"{folder / name}: run {key} has {why} than in {into / name}, which stays as it is")


def do_methods(arguments: argparse.Namespace) -> None:
    names = [arguments.name] if arguments.name else list(METHODS)
    choose("method", names[0], METHODS)
    choose("dataset", arguments.dataset, data.DATASETS)
    training = shipped_for(arguments.dataset, arguments.scale).training
    task = data.load(arguments.dataset, data.find(arguments.dataset, arguments.data).DOMAINS[0], arguments.data)
    print(
        f"Bytes for {training.model} on {arguments.dataset} at scale {arguments.scale}, {task.target.name} as target:\n"
    )
    for name in names:
        method = METHODS[name]
        source = "needs source data in one place" if method.needs_source_data else "source data stay at home"
        labels = "; reads target labels" if method.uses_target_labels else ""
        print(f"{name:14} {method.summary}\n{'':14} {source}{labels}")
        print(f"{'':14} sends {in_words(traffic(name, task, training), training.epochs)}", flush=True)
        for key, field in method.Config.model_fields.items() if arguments.name else ():
            print(f"{'':16} {key} = {field.default}: {' '.join((field.description or '').split())}")


def do_datasets(arguments: argparse.Namespace) -> None:
    for name, dataset in data.DATASETS.items():
        print(f"{name:14} {len(dataset.CLASSES)} classes, domains {listing(dataset.DOMAINS)}")
        print(f"{'':14} {dataset.available(None)}")


def do_data(arguments: argparse.Namespace) -> int:
    dataset = choose("dataset", arguments.name, data.DATASETS)
    preparing = arguments.action in ("prepare", "build")
    if preparing and hasattr(dataset, "prepare"):
        dataset.prepare(arguments.data)
    dataset = data.find(arguments.name, arguments.data)  # a folder knows its classes only now
    if arguments.action == "export":
        task = data.load(arguments.name, dataset.DOMAINS[0], arguments.data)
        for path in export(task, arguments.out or Path(arguments.name)):
            print(f"Wrote {path}.")
        return 0
    domains, sha256 = dataset.load(arguments.data)
    if arguments.action == "show":
        return show(dataset, domains, arguments.out or Path("contact-sheet.png"))
    print(dataset.available(arguments.data))
    for domain in domains.values():
        shape = "×".join(map(str, domain.train.shape))
        counts = f"train {len(domain.train):6,}  test {len(domain.test):6,}  {shape}"
        print(f"{domain.name:12} {counts}  sha256 {digest({domain.name: domain})[:12]}")
        if not preparing:
            for split, part in (("train", domain.train), ("test", domain.test)):
                print(f"{'':14}{split:5} {histogram(part, dataset.CLASSES)}")
    pinned = getattr(dataset, "SHA256", sha256)
    print(f"sha256 {sha256}" + ("" if sha256 == pinned else f" differs from the pinned {pinned}"))
    return 0 if preparing or sha256 == pinned else 1


def histogram(part: Part, classes: tuple[str, ...]) -> str:
    """Samples of every class; of many classes, the fewest and the most."""
    sizes = part.y.bincount(minlength=len(classes)).tolist()
    if len(classes) > 20:
        return f"{len(classes)} classes, {min(sizes):,} to {max(sizes):,} samples in each"
    return "  ".join(f"{name} {size:,}" for name, size in zip(classes, sizes, strict=True))


def show(dataset: data.Dataset, domains: dict[str, Domain], out: Path) -> int:
    """A contact sheet of images; a sentence on what is not an image."""
    if hasattr(dataset, "describe"):
        print(dataset.describe(domains))
        return 0
    from kd3a import plots

    plots.contact_sheet(domains, dataset.CLASSES).savefig(out)
    print(f"Wrote {out}.")
    return 0


def do_verify(arguments: argparse.Namespace) -> int:
    files = arguments.files or sorted((records.ROOT / "results").glob("*.jsonl"))
    known = [record for file in files for record in records.read(file)]
    if not known:
        raise UserError("There is no record to verify; run a study first, or name a .jsonl file.")
    hardware, worst = hardware_of(arguments), 0
    for record in random.Random(arguments.seed).sample(known, min(arguments.sample, len(known))):
        worst = max(worst, verify_one(record, known, hardware, arguments))
    return worst


def verify_one(
    record: records.Record, known: list[records.Record], hardware: Hardware, arguments: argparse.Namespace
) -> int:
    """Train one recorded run again, or repeat an attack; 0 if it agrees, 1 if not.

    On the same processor with the same versions every epoch must agree. Elsewhere rounding differs, and training
    enlarges that like another seed: then the gap may be as large as it is between seeds.
    """
    if "images" in record:
        return reconstructions.verify(record, hardware, arguments.data, lambda line: print(line, flush=True))
    run = run_from(record)
    task = data.load(run.dataset, run.target, arguments.data)
    again = execute(run, task, hardware, record["study"], record["scale"], arguments.quiet)
    forget(again["key"])
    gap = abs(again["target_accuracy"] - record["target_accuracy"])
    chance = records.chance_gap([r["target_accuracy"] for r in records.siblings(record, known)])
    allowed = max(arguments.tolerance, chance)
    if [e["target_accuracy"] for e in again["epochs"]] == [e["target_accuracy"] for e in record["epochs"]]:
        code, verdict = 0, "identical in every epoch"
    elif records.same_place(record, again):
        code, verdict = 1, f"differs by {gap:.4f} at the end, on the same processor with the same versions"
    else:
        code, verdict = int(gap > allowed), f"differs by {gap:.4f} at the end, {allowed:.4f} allowed on another machine"
    print(f"{record['key']} {run.method} → {run.target} seed {run.seed}: {verdict}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
