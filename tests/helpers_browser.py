"""A headless Chromium over its debugging pipe: no driver, no port, no network."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--remote-debugging-pipe")
# Generous: the machine may be busy with other tests.
_TIMEOUT_S = 120
_READ_FD, _WRITE_FD = 3, 4  # where Chromium looks for its ends of the pipes


def find_browser() -> str | None:
    """Path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab; a context manager.

    Attributes
    ----------
    events : list of dict
        What the tab reported since the last :meth:`open`.
    """

    def __init__(self, path: str) -> None:
        self.events: list[dict] = []
        self._session: str | None = None
        self._number, self._buffer = 0, b""
        self._profile = tempfile.mkdtemp(prefix="flarecore-browser-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def place_pipes() -> None:
            # By way of high numbers, since the ends may lie on 3 and 4 themselves.
            os.dup2(to_browser, 63)
            os.dup2(from_browser, 64)
            os.dup2(63, _READ_FD)
            os.dup2(64, _WRITE_FD)

        self._process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            preexec_fn=place_pipes, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(Exception):
            self.call("Browser.close", at_tab=False)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, *, at_tab: bool = True, **parameters: object) -> dict:
        """Result of a command of the DevTools protocol."""
        self._number += 1
        message: dict = {"id": self._number, "method": method, "params": parameters}
        if at_tab and self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self) -> dict:
        deadline = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            data = os.read(self._read, 1 << 16) if ready else b""
            if not data:
                raise RuntimeError("the browser has gone" if ready else "the browser hangs")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, url: str, *, width: int = 1400, height: int = 1000, scheme: str = "light",
             media: str = "") -> None:
        """Loads a page in a window of that size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])
        # A change of the fragment alone would load nothing.
        self._load("about:blank")
        self._load(url)

    def _load(self, url: str) -> None:
        self.events.clear()
        loader = self.call("Page.navigate", url=url)["loaderId"]
        while True:
            names = [e.get("method") if e.get("method") != "Page.frameNavigated"
                     else e["params"]["frame"]["loaderId"] for e in self.events]
            if loader in names and "Page.loadEventFired" in names[names.index(loader):]:
                return
            self.events.append(self._next())

    def js(self, expression: str) -> object:
        """Value of an expression in the page; an exception in it is raised."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def happened(self, *methods: str) -> list[dict]:
        """Parameters of the events of these kinds since the page was opened."""
        self.js("0")  # events that are on their way come first
        return [e["params"] for e in self.events if e.get("method") in methods]
