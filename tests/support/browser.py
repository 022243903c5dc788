"""A headless Chromium, spoken to through the pipe of its DevTools protocol: nothing to install but Chromium.

with Browser() as page:
    page.open("file:///tmp/report.html")
    assert page.run("document.title") == "..."
    assert page.errors == [] and page.requests == ["file:///tmp/report.html"]
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

from tests.support.missing import missing

# Nothing that talks to anybody, and nothing of the person whose machine this is.
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


def find() -> str:
    """Chromium's path; without one the test is skipped, and fails in CI."""
    names = ("chromium", "chromium-browser", "google-chrome")
    paths = filter(None, map(shutil.which, names))
    return next(paths, None) or missing("no Chromium: apt-get install chromium")


class Browser:
    """One page of one browser."""

    def __init__(self, width: int = 1180, height: int = 1500) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._size = (width, height)
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None

    def __enter__(self) -> Browser:
        command = find()
        self._folder = tempfile.mkdtemp(prefix="lowtide-browser-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads descriptor 3 and writes 4: the shell puts them there.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", command, *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        width, height = self._size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        with contextlib.suppress(OSError, TimeoutError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, address: str, theme: str = "light") -> None:
        """Load a page in a light or dark theme."""
        self.theme(theme)
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def theme(self, name: str) -> None:
        """Set the preferences that the page sees."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < deadline, f"never true: {condition}; errors: {self.errors}"
            time.sleep(0.05)

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click the middle of an element, as a hand would."""
        box = self.run(
            f"(b => [b.x + b.width / 2, b.y + b.height / 2])(document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def screenshot(self, path: str) -> None:
        """A picture of the whole page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol and its answer; what happens meanwhile is written down."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 30
        while True:
            answer = self._next(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            received = os.read(self._in, 1 << 20)
            if not received:
                raise OSError("Chromium has ended")
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(parameters["entry"]))
