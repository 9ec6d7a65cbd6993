"""A headless Chromium for tests, spoken to in its own protocol over a pipe: no driver to install.

https://chromedevtools.github.io/devtools-protocol/; messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
LONGEST = 30.0  # seconds to wait for a reply or a condition
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
    *("--no-first-run", "--disable-extensions", "--disable-dev-shm-usage"),
)


def chromium():
    """The path of a browser; None where there is none."""
    return os.environ.get("SOUNDINGLINE_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )


class Tab:
    """One tab. `problems` are what its console and its security policy complained about, and
    `dialogs` what scripts asked a person, such as `alert`."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._pending = b""
        self._number = 0
        self._session = ""
        self.problems = []
        self.dialogs = []
        self.requests = []
        self._session = self._attached()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def _attached(self):
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            for target in self.ask("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    identifier = {"targetId": target["targetId"], "flatten": True}
                    return str(self.ask("Target.attachToTarget", **identifier)["sessionId"])
            time.sleep(0.05)
        raise AssertionError("the browser opened no tab")

    def ask(self, method, **parameters):
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == message["id"]:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self._heard(reply)

    def _next(self):
        while b"\0" not in self._pending:
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser has ended"
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\0")
        return json.loads(line)

    def _heard(self, event):
        name, detail = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(detail["exceptionDetails"])[:600])
        elif name == "Log.entryAdded" and detail["entry"]["level"] in ("warning", "error"):
            self.problems.append(detail["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(detail["request"]["url"])
        elif name == "Page.javascriptDialogOpening":
            self.dialogs.append(detail["message"])
            accept = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            os.write(
                self._send, json.dumps({**accept, "sessionId": self._session}).encode() + b"\0"
            )

    def open(self, path, fragment=""):
        """A file of this machine, from its disk, loaded anew."""
        for url in ("about:blank", f"{path.resolve().as_uri()}{fragment}"):
            self.ask("Page.navigate", url=url)
            self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def value(self, expression):
        """The value of an expression of JavaScript."""
        # By default the protocol switches off what a page's policy says of `eval`.
        how = {"returnByValue": True, "awaitPromise": True, "allowUnsafeEvalBlockedByCSP": False}
        result = self.ask("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression):
        """Until an expression is truthy."""
        end = time.monotonic() + LONGEST
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < end, f"waited for {expression}"
            time.sleep(0.02)

    def press(self, key):
        """A key of the keyboard."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {})
            )

    def size(self, width, height=900, *, dark=False):
        """How wide and high the window is, in pixels, and which colours the reader prefers."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path, *, whole=False):
        """A PNG of what is seen, or of the whole page."""
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def running_tab(browser):
    """A new browser with one tab, and a profile that is thrown away."""
    to_browser, from_browser = os.pipe(), os.pipe()
    redirected = f'exec "$0" "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", redirected, *command],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Tab(to_browser[1], from_browser[0])
        finally:
            process.kill()
            process.wait()
            os.close(to_browser[1])
            os.close(from_browser[0])
