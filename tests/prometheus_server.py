"""A Prometheus server for tests: the real one, with the configuration of examples/monitoring."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from support import ROOT, offered

from pyalloc.metrics import DEFAULT_PORT

MONITORING = ROOT / "examples" / "monitoring"


class Server:
    """A Prometheus server with the example's configuration, which scrapes every two seconds at a port of the test's."""

    def __init__(self, folder: Path, exporter: int) -> None:
        offered(shutil.which("prometheus"), "scraping needs a Prometheus server (Debian: prometheus)")
        with socket.create_server(("127.0.0.1", 0)) as unused:
            self.port = unused.getsockname()[1]
        text = (MONITORING / "prometheus.yml").read_text()
        assert f'"127.0.0.1:{DEFAULT_PORT}"' in text
        text = text.replace(f":{DEFAULT_PORT}", f":{exporter}").replace("15s", "2s")
        (folder / "prometheus.yml").write_text(text)
        shutil.copy(MONITORING / "alerts.yml", folder)
        command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        self.log = folder / "prometheus.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{self.port}"], cwd=folder, stdout=log, stderr=log
            )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)

    def ask(self, path: str, **arguments: str) -> Any:
        """What the server's API answers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        found: list[dict[str, Any]] = self.ask("query", query=text)["result"]
        return found

    def wait_for(self, text: str, seconds: float = 120) -> list[dict[str, Any]]:
        """The series of a query, as soon as there are any."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if found := self.query(text):
                    return found
            except OSError:
                pass  # it is still starting
            time.sleep(0.2)
        raise AssertionError(f"{text}: nothing after {seconds} s\n{self.log.read_text()[-4000:]}")
