"""What one message costs that somebody waits for, in instructions of the broker's process.

    make compile && cd build/compiled && .venv/bin/python -m bench.micro.instructions [--out FILE]

The shapes are those of `bench.micro.single`. The whole broker runs under callgrind (of valgrind),
Python, the loop and libraries included; the kernel and the helper process are not. What is told is
the slope between two rounds of different length. With `latency_2000` a message comes every 200 ms,
so that none shares a turn with another, and the helper syncs; with the others the loop does.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import servers
from bench.micro.single import PATIENCE, SHAPES, run, shape
from bench.run import conditions
from vouchmq.protocol.native import IS_NATIVE

WARM_UP_COUNT = 30
RATE_PER_S = 5
# Under callgrind everything takes fifty times as long.
START_LIMIT_S = 600.0
DUMP_LIMIT_S = 200.0
HELPED = "latency_2000"


def dumped(pid: int, place: Path) -> int:
    """Have callgrind write what it has counted since the last time; return the instructions.

    Raises:
        RuntimeError: it has not
    """
    before = {*place.glob("callgrind.*")}
    subprocess.run(["callgrind_control", "--dump", str(pid)], check=True, capture_output=True)
    deadline = time.monotonic() + DUMP_LIMIT_S
    while time.monotonic() < deadline:
        for file in {*place.glob("callgrind.*")} - before:
            found = re.search(r"^totals: (\d+)", file.read_text(), re.MULTILINE)
            if found is not None:
                return int(found[1])
        time.sleep(0.1)
    raise RuntimeError("callgrind has written nothing")


def measure(name: str, messages: int, place: Path) -> int:
    """The instructions that each message of a shape takes."""
    syncs = PATIENCE["helper" if name == HELPED else "own"]
    program = f"import sys; from vouchmq.store.sync import group_commit; {syncs}"
    program += "from vouchmq.server.cli.main import main; sys.exit(main())"
    command = f"valgrind --tool=callgrind --callgrind-out-file={place}/callgrind.%p "
    command += f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} serve --port 0"
    with servers.vouchmq(f"{command} --data-dir {{data_dir}} --log-level warning", place) as server:
        if server.pid is None:
            raise RuntimeError("the server's process cannot be seen")
        rate_per_s = RATE_PER_S if name == HELPED else 0
        run(server, shape(name, WARM_UP_COUNT, rate_per_s))
        dumped(server.pid, place)
        run(server, shape(name, messages // 3, rate_per_s))
        short = dumped(server.pid, place)
        run(server, shape(name, messages, rate_per_s))
        return (dumped(server.pid, place) - short) // (messages - messages // 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("shapes", nargs="*", help="one or more of: " + ", ".join(SHAPES))
    parser.add_argument("--messages", type=int, default=300, help="in the longer round")
    parser.add_argument("--out", type=Path, help="where the counts go as JSON")
    arguments = parser.parse_args()
    servers.START_LIMIT_S = START_LIMIT_S
    told: dict[str, object] = {
        "conditions": conditions(Path(tempfile.gettempdir())),
        "build": "compiled" if IS_NATIVE else "pure Python",
    }
    for name in arguments.shapes or SHAPES:
        with tempfile.TemporaryDirectory(prefix="vouchmq-instructions-") as place:
            told[name] = measure(name, arguments.messages, Path(place))
        sys.stdout.write(f"{name}: {told[name]:,} instructions per message\n")
        sys.stdout.flush()
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
