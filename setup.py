"""Builds the package, with the modules that every message passes compiled to one extension.

They are compiled from the same source by mypyc (docs/internals/compiled.md). Without a working C
compiler, and with VOUCHMQ_COMPILE=0 in the environment, the wheel is pure Python.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

# Behind setuptools, which brings it: Python itself has none from 3.12 on.
from distutils.ccompiler import new_compiler  # isort: skip
from distutils.sysconfig import customize_compiler, get_python_inc  # isort: skip

# The only list of them. Any other module works the same, at the interpreter's speed.
COMPILED = """
protocol: codec constants contents fields native normalized properties property_layout reader runs
protocol: stamps states text
server: version
server.auth: attempts authenticator connection_limits failed_logins passwords
server.broker: counters delays enqueue events message timers
server.broker.dead_letter: headers pace
server.broker.paging: paged_store pager
server.broker.queues: classic consumers parked priority ready_list requeued settlement
server.channel: channel confirms consumer plans publish queue_seq route timeouts tx unacked
server.connection: backpressure blocked channel_table committed connection events handshake
server.connection: heartbeat inbound outbox sasl shared_timers
server.edge: admission disk_watch listener
server.ledger: channel_recorder publish_numbers recorder text writer
server.runtime: alarms context flow journal_writer memory_relief turn work_budget
store: disk histogram lsn_spans lsns settled_lsns
store.journal: block_buffer end_mark journal notes positions records routes staging
store.journal: segment segment_map segment_pool segments
store.reading: index
store.recovery: summary summary_writer
store.sync: group_commit worker
"""


def compiled_files() -> list[str]:
    """The sources of `COMPILED`, in the package."""
    rows = (line.split(":") for line in COMPILED.split("\n") if line)
    return [
        f"vouchmq/{folder.replace('.', '/')}/{name}.py"
        for folder, names in rows
        for name in names.split()
    ]


def wanted() -> bool:
    """Whether nobody has asked for the pure build."""
    return os.environ.get("VOUCHMQ_COMPILE", "1") not in {"", "0"}


def has_compiler() -> bool:
    """Whether an extension for this Python can be compiled and linked."""
    compiler = new_compiler()
    customize_compiler(compiler)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_VERSION_HEX != 0; }\n")
        try:
            objects = compiler.compile([str(source)], folder, include_dirs=[get_python_inc()])
            compiler.link_shared_object(objects, str(Path(folder, "probe.so")))
        except (CompileError, LinkError, OSError):
            return False
    return True


class BuildSideBySide(build_ext):
    """Runs one C compiler for each processor: mypyc writes one file for each module."""

    def build_extensions(self) -> None:
        """Build all extensions, and all files of each, with as many threads as processors."""
        compile_in_turn = self.compiler.compile
        self.parallel = len(os.sched_getaffinity(0))
        # Not the threads that build extensions: those wait for these.
        with ThreadPoolExecutor(self.parallel) as threads:

            def compile_each(sources: Sequence[str], **options: Any) -> list[str]:
                largest_first = sorted(sources, key=os.path.getsize, reverse=True)
                made = threads.map(lambda file: compile_in_turn([file], **options), largest_first)
                return [each for part in made for each in part]

            self.compiler.compile = compile_each
            super().build_extensions()


def extensions() -> list[Extension]:
    """What to compile: nothing unless that is wanted and possible."""
    # Editable installs are pure: what runs there is what is being edited.
    if not wanted() or not {"bdist_wheel", "build", "build_ext", "install"} & set(sys.argv):
        return []
    if not has_compiler():
        print("vouchmq: pure Python, for there is no working C compiler", file=sys.stderr)
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        print("vouchmq: pure Python, for mypy, which compiles it, is not there", file=sys.stderr)
        return []

    try:
        return mypycify(
            ["--config-file=", "--ignore-missing-imports", *compiled_files()],
            opt_level=os.environ.get("VOUCHMQ_OPT_LEVEL", "3"),
            debug_level="0",
            group_name="vouchmq",
            # One file for all takes a compiler several times as long, and 1.5 GB.
            multi_file=True,
        )
    except SystemExit:
        # So it ends when it rejects something, as a newer mypy may.
        print("vouchmq: pure Python, for mypy rejects the source, see above", file=sys.stderr)
        return []


if __name__ == "__main__":
    # What an isolated build fetches: mypy has mypyc, and looks at the types of the others.
    needed = ["mypy>=2.4", "msgspec>=0.20", "pamqp>=4,<5", "regex", "structlog>=24.4"]
    needed += ["isal>=1.7; platform_machine in 'x86_64 AMD64 aarch64 arm64'"]
    setup(
        cmdclass={"build_ext": BuildSideBySide},
        ext_modules=extensions(),
        setup_requires=needed if wanted() and has_compiler() else [],
    )
