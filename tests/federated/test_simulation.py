"""Flower's simulation engine on Ray: the same two apps, the bits of one process."""

from __future__ import annotations

import tiny
from test_processes import assert_same_bits, run_of

from kd3a.federation.simulation import Simulation


def test_simulated_sources_end_with_the_bits_of_one_process(tiny_task, tmp_path):
    run = run_of("kd3a", tiny.LOW_GATE)
    with Simulation(tmp_path, tiny_task) as simulation:
        simulation.start_link()
        record = simulation.record(run, say=lambda words: None)
        assert [entry["answered"] for entry in simulation.rounds()] == [simulation.names] * 2
        assert_same_bits(simulation, run, tiny_task, record)
