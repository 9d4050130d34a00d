"""Any edit of a closed file of a ledger is found at its place, whatever else is in the directory.

Several brokers have written sealed ledgers side by side, one of them over a crash that tore its
last flush. Each example edits one file of one of them, as somebody could who knows the format and
does not rebuild the chain; it must be found in that broker, near the line, and in no other. What
cannot be found (docs/guides/audit.md) is shown here as well, so that nobody promises more.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.worlds import World
from vouchmq.server.ledger.files import LedgerFiles
from vouchmq.server.ledger.seals import SEAL, sealed
from vouchmq.server.version import VERSION
from vouchmq.spark.ledger import judging, seals
from vouchmq.spark.ledger.seals import STRIPPED, TAMPERED, Fault

BROKERS = ("one", "two@host", "three-3")
STRIP = seals.SEAL


def written(directory: Path, name: str, seed: int, *, is_packed: bool) -> None:
    """A ledger of some epochs; a crash tears the last flush of each that did not end in order."""
    chance = random.Random(seed)
    world = World(name)
    world.follow([(chance.randrange(100), chance.randrange(20), chance.randrange(20))] * 3)
    for _ in range(2):
        world.follow(
            (chance.randrange(100), chance.randrange(20), chance.randrange(20)) for _ in range(25)
        )
        world.restart(chance.randrange(4), 0)
    world.follow([(0, 0, 5), (2, 0, 0), (3, 0, 0), (5, 0, 3)] * 40)
    for epoch, told in groupby(world.lines, key=lambda line: int(line["o"])):
        files = LedgerFiles(directory, name, compresses=is_packed)
        files.open(makes=True)
        files.begin(epoch)
        rest = list(told)
        is_over = rest[-1]["e"] == "end"
        count = 0
        while rest:
            size = chance.randint(1, 6)
            text = (
                json.dumps({**line, "ver": VERSION}, separators=(",", ":")) for line in rest[:size]
            )
            files.write("".join(f"{line}\n" for line in text).encode())
            rest = rest[size:]
            count += 1
            if rest and count % 5 == 0:
                files.rotate(0)
        if is_over or epoch == world.epoch:
            files.end(0, goes_dark=False)
            files.close()
        else:
            files.close()
            (torn,) = directory.glob(f".{name}-*.open")
            torn.write_bytes(torn.read_bytes()[:-30])


@dataclass
class Ledgers:
    """What brokers have written: by file name its lines without their seals, and the rest."""

    directory: Path
    ended: dict[tuple[str, int], str | None]

    def files_of(self, broker: str) -> list[Path]:
        """Of a broker, in their order."""
        return sorted(self.directory.glob(f"{broker}-0*"))

    def judged(self) -> list[Fault]:
        """What is found, also when looks were kept as JSON in between."""
        paths = sorted(path for path in self.directory.iterdir() if path.name[0] != ".")
        looks = [seals.Look.from_json(each) for each in seals.to_json(map(seals.look, paths))]
        return [
            fault for fault in judging.judge(looks, self.ended).faults if fault.kind == TAMPERED
        ]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Ledgers:
    """The ledgers of three brokers, which nobody has touched."""
    directory = tmp_path_factory.mktemp("ledgers") / "l"
    for seed, name in enumerate(BROKERS):
        written(directory, name, seed, is_packed=seed == 1)
    made = Ledgers(directory, {})
    for name in BROKERS:
        ends: dict[int, str | None] = {}
        for path in made.files_of(name):
            for line in map(json.loads, text_of(path).splitlines()):
                ends[line["o"]] = line["w"] if line["e"] == "end" else ends.get(line["o"])
        newest = max(ends)
        for epoch, how in ends.items():
            made.ended[name, epoch] = how or (None if epoch == newest else "crash")
    assert "crash" in made.ended.values()
    return made


def text_of(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def put(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def lines_of(path: Path) -> list[bytes]:
    return text_of(path).splitlines(keepends=True)


def bare(line: bytes) -> bytes:
    """A line without its seal."""
    return STRIP.sub(b"}\n", line)


# Edits: each changes the files of a broker, and returns the file and the line that it is about.
# A line of 0 is anywhere in the file.

Place = tuple[str, int]
Edit = Callable[[Ledgers, str, random.Random], Place]


def drawn(ledgers: Ledgers, broker: str, chance: random.Random) -> tuple[Path, list[bytes], int]:
    path = chance.choice(ledgers.files_of(broker))
    lines = lines_of(path)
    return path, lines, chance.randrange(len(lines))


def flip(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """One octet of a line is another."""
    path, lines, at = drawn(ledgers, broker, chance)
    line = bytearray(lines[at])
    place = chance.randrange(len(line) - 1)
    line[place] = chance.choice([each for each in b'0a"}{,:' if each != line[place]])
    lines[at] = bytes(line)
    put(path, b"".join(lines))
    return path.name, at + 1


def swap(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """Two lines change places."""
    path, lines, at = drawn(ledgers, broker, chance)
    other = (at + 1) % len(lines)
    lines[at], lines[other] = lines[other], lines[at]
    put(path, b"".join(lines))
    return path.name, 0


def forged(line: bytes) -> bytes:
    """The same number, and other contents."""
    told = json.loads(bare(line))
    told["t"] += 1
    return json.dumps({**told, "cid": 77, "w": "x"}, separators=(",", ":")).encode() + b"\n"


def say_twice(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """A line with the number of another one and other contents, beside that."""
    path, lines, at = drawn(ledgers, broker, chance)
    lines.insert(at + 1, forged(lines[at]))
    put(path, b"".join(lines))
    return path.name, at + 2


def say_elsewhere(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """The same in a file of its own, with a seal or without."""
    path, lines, at = drawn(ledgers, broker, chance)
    epoch = json.loads(bare(lines[at]))["o"]
    other = path.with_name(f"{broker}-{epoch:08}-00000070.jsonl")
    line = forged(lines[at])
    before = chance.choice(("", "0" * 64))
    other.write_bytes(sealed(before, line, begins_file=True)[0] if chance.random() < 0.5 else line)
    return other.name, 1


def strip_file(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """The seals of a file are gone."""
    path, lines, _ = drawn(ledgers, broker, chance)
    put(path, b"".join(map(bare, lines)))
    return path.name, 0


def strip_all(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """The seals of a broker are gone, and a line is another."""
    for path in ledgers.files_of(broker):
        put(path, b"".join(map(bare, lines_of(path))))
    return flip(ledgers, broker, chance)[0], 0


def strip_from(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """From some line of the broker on."""
    files = ledgers.files_of(broker)
    at = chance.randrange(len(files))
    for path in files[at:]:
        put(path, b"".join(map(bare, lines_of(path))))
    return files[at].name, 0


def add_line(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """Lines at the end of a file, with the next numbers or some others, whole or not.

    One flush at the very end, as a crash leaves it, is among what cannot be found.
    """
    path, lines, _ = drawn(ledgers, broker, chance)
    last = json.loads(bare(lines[-1]))
    for each in range(1, 3 if path == ledgers.files_of(broker)[-1] else chance.randrange(2, 4)):
        told = {**last, "n": last["n"] + each, "t": last["t"] + each, "e": "syn", "wm": 1, "us": 1}
        lines.append(json.dumps(told, separators=(",", ":")).encode() + b"\n")
    data = b"".join(lines)
    put(path, data if chance.random() < 0.5 else data[:-1])
    return path.name, len(lines)


def exchange(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """A file has the contents of another broker's."""
    path, *_ = drawn(ledgers, broker, chance)
    other = next(each for each in BROKERS if each != broker)
    put(path, b"".join(lines_of(chance.choice(ledgers.files_of(other)))))
    return path.name, 0


def of_another(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """A line that claims to be another broker's."""
    path, lines, at = drawn(ledgers, broker, chance)
    other = next(each for each in BROKERS if each != broker)
    lines.insert(at, forged(lines_of(ledgers.files_of(other)[0])[0]))
    put(path, b"".join(lines))
    return path.name, at + 1


def write_anew(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """All files but the first and the last of an epoch become one, sealed anew and changed."""
    files = ledgers.files_of(broker)
    by_epoch = [list(group) for _, group in groupby(files, key=lambda path: path.name[:-15])]
    some = max(by_epoch, key=len)
    first, *middle, _ = some
    assert len(middle) > 1, "leaves a number out"
    lines = [bare(line) for path in middle for line in lines_of(path)]
    at = chance.randrange(len(lines))
    lines[at] = forged(lines[at])
    seal = json.loads(lines_of(first)[-1])["seal"]
    for path in middle[1:]:
        path.unlink()
    put(middle[0], sealed(seal, b"".join(lines), begins_file=True)[0])
    return middle[0].name, 0


def cut_and_change(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """A file ends early, and the last lines that are left are others.

    Of an epoch that a crash has ended, one flush of them is among what cannot be found.
    """
    path = chance.choice([each for each in ledgers.files_of(broker) if len(lines_of(each)) > 1])
    lines = lines_of(path)
    at = chance.randrange(1, len(lines))
    lines = [*lines[: at - 1], forged(lines[at - 1]), forged(lines[at])]
    put(path, b"".join(lines))
    return path.name, at + 1


def damage(ledgers: Ledgers, broker: str, chance: random.Random) -> Place:
    """The file as it is on the disk, compressed or not, has another octet in it, or less."""
    path, *_ = drawn(ledgers, broker, chance)
    data = bytearray(path.read_bytes())
    at = chance.randrange(10, len(data) - 12)
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return path.name, 0


EDITS: tuple[Edit, ...] = (
    *(flip, swap, say_twice, say_elsewhere, strip_file, strip_all, strip_from, add_line),
    *(exchange, of_another, write_anew, cut_and_change, damage),
)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edited")


def edited(original: Ledgers, room: Path) -> Ledgers:
    """A copy to be edited."""
    shutil.rmtree(room / "l", ignore_errors=True)
    shutil.copytree(original.directory, room / "l")
    return Ledgers(room / "l", original.ended)


def contents(ledgers: Ledgers, broker: str) -> dict[str, list[bytes]]:
    found = {}
    for path in ledgers.files_of(broker):
        look = seals.look(path)
        found[path.name] = [bare(line) for line in seals.read_look(look).splitlines(keepends=True)]
    return found


def is_excused(before: dict[str, list[bytes]], after: dict[str, list[bytes]]) -> bool:
    """Whether the broker's lines are all still there, or some are missing and no other has come.

    What is missing is told as such; whether seals of unchanged lines are there proves nothing.
    """
    old = [line for lines in before.values() for line in lines]
    new = [line for lines in after.values() for line in lines]
    kept = iter(old)
    return all(line in kept for line in new)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@settings(
    max_examples=15,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), broker=st.sampled_from(BROKERS))
def test_an_edit_is_found_at_its_place_and_hides_nothing(
    edit: Edit, seed: int, broker: str, original: Ledgers, room: Path
) -> None:
    ledgers = edited(original, room)
    before = contents(ledgers, broker)
    name, line = edit(ledgers, broker, random.Random(seed))
    faults = ledgers.judged()
    assert {fault.broker for fault in faults} <= {broker}
    if is_excused(before, contents(ledgers, broker)) and not edit.__name__.startswith("strip"):
        return
    assert faults, (name, line)
    files = [path.name for path in ledgers.files_of(broker)]
    near = files[max(0, files.index(name) - 1) : files.index(name) + 2]
    assert any(
        Path(fault.file).name in near
        and (
            not line
            or Path(fault.file).name != name
            or not fault.first
            or fault.first - 1 <= line <= fault.last + 1
        )
        for fault in faults
    ), (name, line, [fault.detail for fault in faults])


def test_nothing_is_found_where_nothing_was_edited(original: Ledgers) -> None:
    assert original.judged() == []


def test_two_edits_are_both_found(original: Ledgers, room: Path) -> None:
    """In each broker its own, whatever the other one is."""
    chance = random.Random(5)
    for one in EDITS:
        ledgers = edited(original, room)
        one(ledgers, BROKERS[0], chance)
        strip_all(ledgers, BROKERS[2], chance)
        assert BROKERS[2] in {fault.broker for fault in ledgers.judged()}, one.__name__


def test_a_copy_of_all_files_is_no_edit(original: Ledgers, room: Path) -> None:
    """Nor is a name with something before it, as whoever collects ledgers gives it."""
    ledgers = edited(original, room)
    for broker in BROKERS:
        for path in ledgers.files_of(broker):
            shutil.copy(path, path.with_name(f"host-{path.name}"))
    assert ledgers.judged() == []


# What cannot be found


def rebuilt(ledgers: Ledgers, broker: str, chance: random.Random) -> None:
    """From some line on the chain is another one, with seals that fit."""
    seal = ""
    for path in ledgers.files_of(broker):
        lines = [bare(line) for line in lines_of(path)]
        at = chance.randrange(len(lines))
        lines[at] = forged(lines[at])
        data, seal = sealed(seal, b"".join(lines), begins_file=True)
        put(path, data)


def test_a_chain_that_was_rebuilt_is_found_by_a_noted_seal_alone(
    original: Ledgers, room: Path
) -> None:
    ledgers = edited(original, room)
    noted = SEAL.search(lines_of(ledgers.files_of("one")[-1])[-1])
    assert noted is not None
    rebuilt(ledgers, "one", random.Random(1))
    assert ledgers.judged() == []
    assert not any(noted[1] in text_of(path) for path in ledgers.files_of("one"))


def test_an_end_that_was_cut_off_behind_a_seal_is_found_by_a_noted_seal_alone(
    original: Ledgers, room: Path
) -> None:
    ledgers = edited(original, room)
    path = ledgers.files_of("one")[-1]
    lines = lines_of(path)
    noted = SEAL.search(lines[-1])
    ends = [at for at, line in enumerate(lines) if SEAL.search(line)]
    put(path, b"".join(lines[: ends[-2] + 1]))
    assert ledgers.judged() == []
    assert noted is not None
    assert noted[1] not in text_of(path)


def test_heads_of_builds_that_never_sealed_are_believed_if_no_line_says_otherwise(
    original: Ledgers, room: Path
) -> None:
    ledgers = edited(original, room)
    for path in ledgers.files_of("one"):
        bared = b"".join(map(bare, lines_of(path)))
        put(path, bared.replace(f'"ver":"{VERSION}"'.encode(), b'"ver":"0.0.9"'))
    assert ledgers.judged() == []
    for path in ledgers.files_of("three-3")[:3]:
        bared = b"".join(map(bare, lines_of(path)))
        put(path, bared.replace(f'"ver":"{VERSION}"'.encode(), b'"ver":"0.0.9"'))
    (*_, last) = [fault for fault in ledgers.judged() if fault.why == STRIPPED]
    assert last.broker == "three-3"
