"""A container engine as a user has it: build, run, look, kill.

Which one, and how, the environment says:

    CONTAINER_ENGINE       podman or docker; by default the one that is installed
    CONTAINER_BUILD_FLAGS  flags of `build`; --network host by default
    CONTAINER_RUN_FLAGS    flags of `run`; the same by default, with which any port will do
    CONTAINERS_CONF        podman's settings; where there is no systemd, the file beside this one

Where no registry can be reached, `tools/base_image.sh` makes a stand-in for the base image.

Knows nothing of the broker but its ready line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any, Final

import pytest

from tests.waiting import wait_until

PROJECT: Final = Path(__file__).resolve().parents[2]
IMAGE: Final = "localhost/vouchmq:test"
BUILD_LIMIT_S: Final = 1800
COMMAND_LIMIT_S: Final = 300
# Any will do: the network is that of the machine.
PORTS: Final = ("VOUCHMQ_PORT", "VOUCHMQ_MANAGEMENT_PORT", "VOUCHMQ_PROMETHEUS_PORT")
ENGINES: Final = ("podman", "docker")
# With systemd podman knows what it may do.
SYSTEMD: Final = Path("/run/systemd/system")
SETTINGS_VARIABLE: Final = "CONTAINERS_CONF"
SETTINGS: Final = Path(__file__).with_name("containers.conf")
# Podman's own format of images has no health checks.
PODMAN_FLAGS: Final = ("--format", "docker")


def flags(variable: str, default: str = "--network host") -> list[str]:
    """Flags that the environment gives."""
    return shlex.split(os.environ.get(variable, default))


def engine_environment() -> dict[str, str]:
    """The environment of the engine."""
    chosen = {} if SYSTEMD.exists() else {SETTINGS_VARIABLE: str(SETTINGS)}
    # Docker's older builder makes all stages, those with linters and tests as well.
    return {**chosen, "DOCKER_BUILDKIT": "1", **os.environ}


class Engine:
    """A container engine, and what was made with it."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._volumes: list[str] = []
        self._containers: list[Container] = []

    def run(self, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> tuple[int, str]:
        """One command of the engine; its exit code, and all that it printed."""
        done = subprocess.run(
            [self.program, *arguments],
            env=engine_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return done.returncode, done.stdout

    def must(self, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        """One command that succeeds."""
        code, output = self.run(*arguments, limit_s=limit_s)
        assert code == 0, f"{self.program} {shlex.join(arguments)}\n{output}"
        return output

    def needs_base(self) -> str:
        """Why the project's image cannot be built here; empty if it can."""
        [base] = set(re.findall(r"^FROM (\S+/\S+)", (PROJECT / "Dockerfile").read_text(), re.M))
        if self.run("image", "inspect", base)[0] == 0:
            return ""
        code, output = self.run("pull", base)
        return "" if code == 0 else f"{base} is not here and cannot be pulled: {output[-200:]}"

    def build(self) -> None:
        """Build the project's image."""
        own = PODMAN_FLAGS if Path(self.program).name == "podman" else ()
        given = flags("CONTAINER_BUILD_FLAGS")
        self.must("build", *own, *given, "-t", IMAGE, str(PROJECT), limit_s=BUILD_LIMIT_S)

    def health_check_facts(self) -> dict[str, Any]:
        """What the image says of its health check."""
        [image] = json.loads(self.must("image", "inspect", IMAGE))
        # Docker has it with what else the Dockerfile says, podman beside that.
        found: dict[str, Any] = image.get("Healthcheck") or image["Config"]["Healthcheck"]
        return found

    def volume(self) -> str:
        """A new volume."""
        name = f"vouchmq-test-{uuid.uuid4().hex[:12]}"
        self.must("volume", "create", name)
        self._volumes.append(name)
        return name

    def start(self, *arguments: str, command: tuple[str, ...] = ()) -> Container:
        """Run the image in the background, with flags of `run`; gives the container at once."""
        name = f"vouchmq-test-{uuid.uuid4().hex[:12]}"
        network = flags("CONTAINER_RUN_FLAGS")
        ports = [part for name in PORTS for part in ("-e", f"{name}=0")]
        container = Container(self, name)
        self._containers.append(container)
        self.must("run", "-d", "--name", name, *network, *ports, *arguments, IMAGE, *command)
        return container

    def once(self, *arguments: str, command: tuple[str, ...] = ()) -> tuple[int, str]:
        """Run the image to its end."""
        network = flags("CONTAINER_RUN_FLAGS")
        return self.run("run", "--rm", *network, *arguments, IMAGE, *command)

    def remove_all(self) -> None:
        """Remove what was made, but not the image."""
        for container in self._containers:
            self.run("rm", "-f", "-v", container.name)
        for name in self._volumes:
            self.run("volume", "rm", "-f", name)


class Container:
    """One container of the image."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self._engine = engine

    def log(self) -> str:
        """What it has printed so far."""
        return self._engine.run("logs", self.name)[1]

    def events(self) -> list[dict[str, Any]]:
        """The log, each line of which is JSON."""
        return [json.loads(line) for line in self.log().splitlines()]

    def wait_ready(self, starts: int = 1) -> int:
        """Wait until it serves, for the n-th time; the port on which it does."""
        return int(self.wait_for("broker.ready", starts)["port"])

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait until its log has an event for the n-th time."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            assert self.is_running(), self.log()
            found[:] = [each for each in self.events() if each["event"] == event]
            return len(found) >= count

        wait_until(is_there, self.log)
        return found[-1]

    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._state("{{.State.Running}}") == "true"

    def exit_code(self) -> int:
        """What its process ended with."""
        return int(self._state("{{.State.ExitCode}}"))

    def wait_end(self) -> int:
        """Wait until its process has ended; the exit code."""
        wait_until(lambda: not self.is_running(), self.log)
        return self.exit_code()

    def run_inside(self, *command: str) -> tuple[int, str]:
        """`exec`: the exit code and what was printed."""
        return self._engine.run("exec", self.name, *command)

    def health_check(self) -> tuple[int, str]:
        """Run the health check of the image as it is written there."""
        [how, *command] = self._engine.health_check_facts()["Test"]
        assert how == "CMD"
        return self.run_inside(*command)

    def kill(self) -> None:
        """As a power cut would."""
        self._engine.must("kill", "-s", "KILL", self.name)
        self.wait_end()

    def start_again(self) -> None:
        """After its end."""
        self._engine.must("start", self.name)

    def stop(self) -> int:
        """As `docker stop`; the exit code."""
        self._engine.must("stop", "-t", "60", self.name)
        return self.wait_end()

    def _state(self, template: str) -> str:
        return self._engine.must("inspect", self.name, "--format", template).strip()


def find_engine() -> Engine:
    """The engine of this machine; skips the test, with the reason, if there is none."""
    wanted = os.environ.get("CONTAINER_ENGINE")
    found = next((each for each in ((wanted,) if wanted else ENGINES) if shutil.which(each)), None)
    if found is None:
        pytest.skip(f"no container engine: {wanted or ' or '.join(ENGINES)} is not installed")
    engine = Engine(found)
    code, output = engine.run("info")
    if code:
        pytest.skip(f"{found} does not work here: {output[-200:]}")
    if problem := engine.needs_base():
        pytest.skip(problem)
    return engine
