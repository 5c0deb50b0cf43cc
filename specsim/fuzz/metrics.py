"""Numbers of a campaign for Prometheus: text on a port of the loopback interface.

A thread serves the text that the campaign made last. A scrape reads that and nothing else, so that it never waits for
the campaign, nor the campaign for it.

This module imports neither torch nor triton.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import specsim
from specsim.errors import UsageError
from specsim.fuzz.store import Store, StoredBatch, StoredFinding
from specsim.fuzz.work import BatchResult

HOST = "127.0.0.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"
_SUMS = {
    "runs": "Runs that were checked.",
    "events": "Iterations of schedules in them.",
    "refused": "Runs that were not checked.",
    "batches": "Batches that were counted.",
    "deaths": "Batches whose process did not come to its end.",
    "cpu_seconds": "CPU time of the batches.",
}
_OF_A_SUM = ("target", "tier")
Labels = tuple[str, ...]


@dataclass(slots=True)
class Counts:
    """What a store holds, in numbers. `start` is when this process began, in seconds since 1970; `workers` how many
    batches are run at a time.
    """

    start: float
    workers: int = 0
    sums: dict[str, dict[Labels, float]] = field(default_factory=lambda: {name: {} for name in _SUMS})
    findings: dict[Labels, float] = field(default_factory=dict)
    features: dict[str, set[str]] = field(default_factory=dict)

    def begin(self, store: Store) -> None:
        """Take what the store holds already."""
        for batch in store.batches():
            self._add((batch.target, batch.tier), batch)
        for covered in store.coverage():
            self.features.setdefault(covered.target, set()).add(covered.feature)
        self.found(store.findings())

    def take(self, result: BatchResult, findings: Iterable[StoredFinding]) -> None:
        """Count a batch that was stored, each once, and what the store's findings are now."""
        batch = result.batch
        self._add((batch.target, batch.tier), result)
        self.features.setdefault(batch.target, set()).update(result.features)
        self.found(findings)

    def found(self, findings: Iterable[StoredFinding]) -> None:
        """What the findings of the store are now."""
        self.findings = dict(
            Counter((finding.target, finding.tier, finding.severity, finding.state) for finding in findings)
        )

    def _add(self, labels: Labels, counted: BatchResult | StoredBatch) -> None:
        values: dict[str, float] = {
            "runs": counted.runs,
            "events": counted.events,
            "refused": sum(counted.refused.values()),
            "batches": 1,
            "deaths": int(bool(counted.ended)),
            "cpu_seconds": counted.cpu_seconds,
        }
        for name, value in values.items():
            self.sums[name][labels] = self.sums[name].get(labels, 0) + value


def text_of(counts: Counts) -> str:
    """The counts as Prometheus reads them, in the text format 0.0.4."""
    lines: list[str] = []
    for name, what in _SUMS.items():
        lines += _family(f"specsim_{name}_total", "counter", what, _OF_A_SUM, counts.sums[name])
    features: Mapping[Labels, float] = {(target,): float(len(names)) for target, names in counts.features.items()}
    of_a_finding = ("target", "tier", "severity", "state")
    lines += _family("specsim_findings", "gauge", "Findings, by what became of them.", of_a_finding, counts.findings)
    lines += _family("specsim_features", "gauge", "Implementations that were checked.", ("target",), features)
    lines += _family("specsim_workers", "gauge", "Batches that are run at a time.", (), {(): float(counts.workers)})
    lines += _family(
        "specsim_start_time_seconds", "gauge", "When this process began, since 1970.", (), {(): counts.start}
    )
    version: Mapping[Labels, float] = {(specsim.__version__,): 1.0}
    lines += _family("specsim_build_info", "gauge", "The version of specsim.", ("version",), version)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, what: str, labels: Labels, values: Mapping[Labels, float]) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
    for key in sorted(values):
        named = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, key, strict=True))
        value = values[key]
        number = str(int(value)) if value == int(value) else repr(value)
        yield f"{name}{{{named}}} {number}" if named else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Served:
    """The text while it is served. `show` replaces it; `port` is the one that was taken."""

    def __init__(self, server: ThreadingHTTPServer, thread: threading.Thread, text: list[bytes]) -> None:
        self.port = int(server.server_address[1])
        self._server = server
        self._thread = thread
        self._text = text

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}{PATH}"

    def show(self, text: str) -> None:
        """Serve this text from now on."""
        self._text[0] = text.encode(errors="backslashreplace")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(port: int) -> Served:
    """Serve on the port of the loopback interface, any free one for 0. UsageError when it cannot be had."""
    text = [b""]

    class Handler(BaseHTTPRequestHandler):
        server_version = f"specsim/{specsim.__version__}"
        timeout = 10  # seconds: a client that says nothing keeps no thread

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            known = self.path.partition("?")[0] == PATH
            body = text[0] if known else f"the numbers are at {PATH}\n".encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: the terminal has the live line."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            """A client that goes away is its own business."""

    try:
        server = Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "something else listens there" if taken else getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"--metrics-port {port} of {HOST} cannot be had ({why})", "name another port, or 0 for any that is free"
        ) from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    return Served(server, thread, text)
