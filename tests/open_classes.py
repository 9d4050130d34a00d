"""Classes of the broker that a test may watch: their methods can be replaced on an object.

Those of a compiled class cannot, but those of its interpreted subclass can. Which classes allow
that says `mypyc_attr` where they are defined. The pure build takes the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import vouchmq.store.recovery.recover
from vouchmq.server.connection.connection import Connection
from vouchmq.store.journal.journal import Journal


class OpenJournal(Journal):
    """A journal whose methods can be replaced."""


class OpenConnection(Connection):
    """A connection whose methods can be replaced."""


@contextmanager
def open_journals() -> Iterator[None]:
    """Every journal that recovery opens is one of these."""
    with patch.object(vouchmq.store.recovery.recover, "Journal", OpenJournal):
        yield
