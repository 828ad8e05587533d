"""Flower's simulation engine on Ray: the same two apps, the bits of one process."""

from __future__ import annotations

import pytest
import tiny
from test_processes import assert_same_bits, run_of

from kd3a.errors import UserError
from kd3a.federation.simulation import Simulation


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_simulated_sources_end_with_the_bits_of_one_process(where, tiny_task, tmp_path, request, monkeypatch):
    if where == "cluster":
        monkeypatch.setenv("RAY_ADDRESS", request.getfixturevalue("cluster"))
    run = run_of("kd3a", tiny.LOW_GATE)
    with Simulation(tmp_path, tiny_task) as simulation:
        simulation.start_link()
        record = simulation.record(run, say=lambda words: None)
        assert [entry["answered"] for entry in simulation.rounds()] == [simulation.names] * 2
        assert_same_bits(simulation, run, tiny_task, record)


@pytest.mark.parametrize(("share", "what"), [({"cpus": 4096}, "CPUs"), ({"gpus": 4096.5}, "GPUs")])
def test_more_than_the_machine_has_is_one_sentence(share, what, tiny_task, tmp_path):
    with pytest.raises(UserError, match=f"to have 4096.* {what}, and this machine has"):
        Simulation(tmp_path, tiny_task, **share)
