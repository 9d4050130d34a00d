"""What the broker's process runs first: it ends with the process of the tests, then serves.

    python -I launch.py FOLDER LIFELINE serve …

Run by path and in isolated mode, so that neither the current directory nor PYTHONPATH, where a
project may have packages called `server` or `store`, is looked at. `vouchmq` is loaded from FOLDER,
whatever else has that name. LIFELINE is the reading end of a pipe whose writing end only the
process of the tests has: when that one ends, however it does, the kernel closes the pipe and kills
this process.
"""

import fcntl
import os
import select
import signal
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def end_with(lifeline: int) -> None:
    """Have the kernel kill this process when the other end of a pipe is closed."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    # It may have been closed before.
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    if poll.poll(0):
        os._exit(1)


def load_package(folder: Path) -> None:
    """Have `vouchmq` be the one in this folder, and find what it needs there as well."""
    package = folder / "vouchmq"
    spec = spec_from_file_location(
        "vouchmq", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package vouchmq in {folder}")
    module = module_from_spec(spec)
    sys.modules["vouchmq"] = module
    spec.loader.exec_module(module)
    # Last: what is installed for this interpreter counts first.
    sys.path.append(str(folder))


def main() -> int:
    """Serve until the end of the tests, or until told to stop."""
    folder, lifeline, *arguments = sys.argv[1:]
    end_with(int(lifeline))
    load_package(Path(folder))
    from vouchmq.server.cli.main import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
