"""What all tests share: one thread, no progress bar, a cache of their own, and the digits built once."""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import os
import threading
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "KD3A_PROGRESS": "0"}  # before torch is imported

import browser
import pytest
import reader
import tiny
import torch
from filelock import FileLock
from playwright.sync_api import Error, sync_playwright

from kd3a import plots
from kd3a.data import digits

torch.set_num_threads(1)
multiprocessing.set_forkserver_preload(["kd3a.cli"])


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory):
    """No test reads or writes the user's cache; the workers of pytest-xdist share one folder."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "kd3a-cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KD3A_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def digits_file(session_cache) -> Path:
    """The cached digits, built when the first test asks for them."""
    with FileLock(session_cache / "digits.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("KD3A_CACHE", str(session_cache))
        digits.load()
        return digits.cache_path()


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    """A cache without any checkpoint, for one test."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("KD3A_CACHE", str(folder))
    return folder


@pytest.fixture
def digits_cache(own_cache, digits_file) -> Path:
    """A cache with the digits and without any checkpoint, for one test."""
    (own_cache / digits_file.name).symlink_to(digits_file)
    return own_cache


@pytest.fixture(scope="session")
def tiny_task():
    return tiny.make_task()


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Save a figure twice; the bytes must agree and be few."""
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path))

    def save(make, name: str) -> str:
        first, second = (plots.save(make(), name).path.read_bytes() for _ in range(2))
        assert first == second and len(first) < 300_000
        assert b"<dc:date>" not in first
        return first.decode()

    return save


@pytest.fixture(scope="module")  # no longer: while it runs, nothing else can use asyncio
def chromium():
    """A browser that finds no other machine."""
    with sync_playwright() as playwright:
        try:
            instance = playwright.chromium.launch(executable_path=browser.executable(), args=browser.FLAGS)
        except Error as error:
            pytest.fail(f"No Chromium starts; `python book/browser.py` installs one, KD3A_BROWSER names one: {error}")
        yield instance
        instance.close()


@pytest.fixture(scope="module")
def site(session_cache) -> Path:
    """The folder of the built book; the workers of pytest-xdist build it once."""
    place = session_cache / "site"
    with FileLock(session_cache / "site.lock"):
        if not place.exists():
            place.write_text(str(reader.built()))
    return Path(place.read_text())


@pytest.fixture(scope="module")
def address(site):
    """The book, served on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


#: Two workers read the book: one builds it and begins, the other comes when everything else is done.
FIRST, LAST = "test_site", "test_accessibility"


def pytest_collection_modifyitems(items):
    """The book's pages first and last: they take the longest."""
    items.sort(key=lambda item: (item.path.stem != FIRST) + item.path.stem.startswith(LAST))
