"""Find a Chromium for the browser tests, or install one: Debian's package as root, Playwright's own build elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other machine can be found
]


def executable() -> str | None:
    """Path of an installed browser; ``KD3A_BROWSER`` names another one. Nothing means Playwright's own build."""
    return os.environ.get("KD3A_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


def works(path: str | None) -> bool:
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]).close()
        except Error:
            return False
    return True


def install() -> None:
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"], check=True)
    else:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=True)


if __name__ == "__main__":
    if not works(executable()):
        print("No Chromium found for the browser tests: installing one.", flush=True)
        install()
        if not works(executable()):
            sys.exit("Chromium does not start; install it by hand and set KD3A_BROWSER to its path.")
