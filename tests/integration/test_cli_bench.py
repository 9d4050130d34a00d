"""`vouchmq bench`: what it counts is what the broker has had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess, clean_environment, run_command
from tests.waiting import LIMIT_S

SHORT = ("--duration", "0.5", "--warm-up", "0.1")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--rate", "2000", "--publishers", "2", "--consumers", "2", "--window", "50"],
        ["--window", "0", "--transient", "--auto-ack", "--size", "8"],
        ["--queue-type", "stream", "--rate", "500"],
        ["--consumers", "0", "--rate", "500"],
    ],
)
def test_everything_is_counted(broker: BrokerProcess, words: list[str]) -> None:
    [before] = broker.listed("overview")
    done = run_command("bench", "--data-dir", str(broker.data_dir), "--json", *SHORT, *words)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    load = result["load"]
    [after] = broker.listed("overview")
    # What was due in the warm-up is not measured.
    assert 0 < result["published"] < int(str(after["published"])) - int(str(before["published"]))
    if load["rate"]:
        assert abs(result["published"] - load["rate"] * load["duration_s"]) <= load["publishers"]
    if load["window"]:
        assert result["confirmed"] == result["published"]
        assert (result["nacked"], result["confirm_ms"]["count"]) == (0, result["confirmed"])
    else:
        assert "confirm_ms" not in result
    if load["consumers"]:
        assert result["received"] == result["published"]
        assert result["delivery_ms"]["count"] == result["received"]
        assert 0 < result["delivery_ms"]["p50"] <= result["delivery_ms"]["max"]
    else:
        assert "received" not in result
    assert "guest" not in load["url"]
    assert broker.listed("queues") == []


def test_the_result_fits_a_terminal(broker: BrokerProcess) -> None:
    done = run_command("bench", "--data-dir", str(broker.data_dir), "--rate", "500", *SHORT)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines[2:5]] == ["published", "confirmed", "received"]
    # 250 messages do not tell what one in a thousand takes.
    [confirm] = [line for line in lines if line.startswith("confirm, ms")]
    assert confirm.split()[6] == "-"


def test_mistakes_are_one_line(broker: BrokerProcess) -> None:
    wrong = f"amqp://guest:wrong@127.0.0.1:{broker.port}/"
    for url, reason in ((wrong, "ACCESS_REFUSED"), ("amqp://x:y@127.0.0.1:1/", "refused")):
        done = run_command("bench", "--url", url, *SHORT)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
        assert reason in done.stderr
        assert "wrong" not in done.stderr
    done = run_command("bench", "--url", "http://127.0.0.1/", *SHORT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "vouchmq: url: must begin with amqp:// or amqps://\n"


def test_a_broker_that_ends_meanwhile(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path)
    process.start()
    command = [sys.executable, "-m", "vouchmq", "bench", "--duration", "600"]
    command += ["--data-dir", str(process.data_dir)]
    try:
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=clean_environment()
        ) as running:
            process.wait_until(lambda: process.listed("overview")[0]["delivered"])
            process.kill9()
            _, said = running.communicate(timeout=LIMIT_S)
    finally:
        process.kill9()
    assert running.returncode == 1
    assert said.startswith("vouchmq: ")
