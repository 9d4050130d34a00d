"""A broker is killed while it works; the audit shows what became of each message.

The broker writes down the life of every message, run by run, in its ledger. Here one is started
with a ledger, and killed (`kill -9`) while a client publishes and consumes; it is started again,
the rest is done, and the audit joins both of its lives: every confirmed message must have come to
an end, or be in its queue. The same is `vouchmq audit LEDGER --out TABLES --report PAGE`.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from vouchmq.kit.bulk import BulkChannel, BulkConnection
from vouchmq.kit.bulk.errors import BulkError
from vouchmq.spark.audit import audit
from vouchmq.spark.audit.result import Job
from vouchmq.spark.report import report

QUEUE = "example.payments"
READY = re.compile(r"ready on [\w.]+:(\d+)")


class Broker:
    """A VouchMQ with a ledger, started by its command."""

    def __init__(self, directory: Path) -> None:
        self._command = [sys.executable, "-m", "vouchmq", "serve", "--port", "0"]
        self._command += ["--data-dir", str(directory), "--ledger-enabled", "on"]
        self._command += ["--log-level", "warning"]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start it, on the data that an earlier one has left; its URL."""
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)  # noqa: S603
        self._process = process
        for line in process.stdout or ():
            if ready := READY.search(line):
                return f"amqp://guest:guest@127.0.0.1:{ready[1]}/%2F"
        raise RuntimeError("the broker does not start")

    def end(self, number: int) -> None:
        """Send it a signal, and wait until it is gone."""
        if self._process:
            self._process.send_signal(number)
            self._process.communicate()


class Client:
    """Publishes payments and consumes them; knows which are confirmed and which it has booked."""

    def __init__(self, count: int) -> None:
        self._left = dict.fromkeys(f"payment-{number}" for number in range(count))
        self.booked: set[str] = set()

    def work(self, url: str, broker: Broker, kill_after: int) -> None:
        """Publish what is not confirmed yet in runs of 100, and consume as much after each."""
        with BulkConnection.open(url) as connection:
            publishing, consuming = connection.channel(), connection.channel()
            publishing.declare(QUEUE, durable=True)
            publishing.confirm_select()
            consuming.qos(200)
            consuming.consume(QUEUE)
            while self._left:
                run = list(self._left)[:100]
                rows = [("", QUEUE, {"delivery_mode": 2}, name.encode()) for name in run]
                publishing.publish_many(rows, mandatory=True)
                for name in run:  # all confirmed, or there was an exception
                    del self._left[name]
                self._book(consuming, 60, timeout_s=5.0)
                if len(self.booked) >= kill_after > 0:
                    broker.end(signal.SIGKILL)  # staged: the next call finds nobody there
            while self._book(consuming, 100, timeout_s=1.0):
                pass

    def _book(self, channel: BulkChannel, count: int, timeout_s: float) -> int:
        """Book and acknowledge what comes; how many."""
        deliveries = channel.wait(count, timeout_s)
        self.booked.update(delivery[5].decode() for delivery in deliveries)
        channel.ack_many([delivery[0] for delivery in deliveries])
        return len(deliveries)


def crash(directory: Path, count: int) -> None:
    """Work with a broker that is killed in the middle, and with the next one until all is done."""
    broker, client = Broker(directory), Client(count)
    try:
        with suppress(BulkError):
            client.work(broker.start(), broker, kill_after=count // 3)
        print(f"killed after {len(client.booked)} payments of {count} were booked")
        client.work(broker.start(), broker, kill_after=0)
        print(f"{len(client.booked)} are booked")
    finally:
        broker.end(signal.SIGTERM)


def judge(spark: SparkSession, ledger: Path, out: Path) -> None:
    """Audit the ledger, and print what it says."""
    result = audit.run(spark, Job(paths=(str(ledger),), out=out / "tables"))
    for state, count in result.states.items():
        print(f"{state}: {count}")
    for kind, count in result.findings.items():
        print(f"found {kind}: {count}")
    print("the ledger is complete" if result.is_provable else "the ledger has holes")
    wrong = result.exit_code(["LOST", "double_end", "early_confirm", "order"])
    accounted = wrong == 0 and sum(result.states.values()) > 0
    print("each payment is accounted for" if accounted else f"exit code {wrong}")
    copies = spark.read.parquet(str(out / "tables" / "copies"))
    again = copies.where("n_dlv > 1").count()
    print(f"{again} payments were delivered more than once")
    report.write(out / "tables", out / "report.html")
    print(f"report: {out / 'report.html'}")


def session() -> SparkSession:
    """A Spark on this machine that keeps its own log to itself."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need the same packages
    builder = SparkSession.Builder().master("local[2]").appName("audit a crash")
    builder = builder.config("spark.log.level", "OFF")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def main() -> None:
    """Make a ledger with a crash in it, and audit it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="how many payments")
    parser.add_argument("--out", type=Path, help="where to work; default: a new directory")
    args = parser.parse_args()
    out = (args.out or Path(tempfile.mkdtemp(prefix="audit-"))).resolve()
    crash(out / "data", args.count)
    judge(session(), out / "data" / "ledger", out)


if __name__ == "__main__":
    main()
