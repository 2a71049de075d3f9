"""Headless Chromium for tests of pages, driven by its DevTools protocol over a pipe: JSON that ends in a NUL."""

import base64
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60  # seconds: machines are busy
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
]


def find() -> str | None:
    """Where Chromium is, if it is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A browser with one page; `errors` are what its console says and what is thrown."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        commands, self.write_end = os.pipe()
        self.read_end, replies = os.pipe()
        flags = " ".join([*FLAGS, f"--user-data-dir={self.folder.name}"])
        shell = f"exec {find()} {flags} about:blank 3<&{commands} 4>&{replies}"  # the browser's own numbers
        self.process = subprocess.Popen(
            ["bash", "-c", shell],
            pass_fds=(commands, replies),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": self.folder.name},
        )
        os.close(commands)
        os.close(replies)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.read_end, selectors.EVENT_READ)
        self.buffer, self.count, self.session, self.errors = b"", 0, None, []
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        target = pages[0]["targetId"] if pages else self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and all of its processes, which are a group of their own."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.selector.close()
        os.close(self.write_end)
        os.close(self.read_end)
        self.folder.cleanup()

    def call(self, method: str, **parameters):
        """Call a method of the protocol; its result."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self.count:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]

    def open(self, page: Path, ready: str) -> None:
        """Open a file as by a double click, and wait until an expression in it is true."""
        self.errors.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait(ready)

    def run(self, script: str):
        """The value of an expression in the page."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.errors}"
            time.sleep(0.05)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag with the left mouse button."""
        for kind, (x, y) in (
            ("mouseMoved", start),
            ("mousePressed", start),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ):
            held = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseMoved" or (x, y) == end else {}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)
        self.settle()

    def press(self, key: str, **more) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)
        self.settle()

    def settle(self) -> None:
        """Wait until the page is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, **features: str) -> None:
        """Set what the reader prefers: `color_scheme="dark"`."""
        given = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=given)

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self):
        """The next message; what the console says is kept."""
        while b"\0" not in self.buffer:
            assert self.selector.select(PATIENCE), "Chromium does not answer"
            some = os.read(self.read_end, 2**16)
            assert some, f"Chromium has ended, exit code {self.process.poll()}"
            self.buffer += some
        line, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(line)
        if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.errors.append(message["params"])
        return message
