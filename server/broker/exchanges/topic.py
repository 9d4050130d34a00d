"""Topic exchanges: keys are words between dots, `*` is one word, `#` any number of them.

The binding keys form a trie over their words. A message walks it with the set of all nodes it may
be at, word by word, so the cost is words times reachable nodes; there is no backtracking, and no
set of patterns makes it exponential.

Spec: EXCH-33, EXCH-40, EXCH-41
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Table
from vouchmq.server.broker.exchanges.bindings import Binding, Destination

ONE_WORD: Final = "*"
ANY_WORDS: Final = "#"
# RabbitMQ 4 has the same bound; its matching, unlike ours, is costly beyond it.
MAX_ANY_WORDS: Final = 2
# So many nodes passed take as long as a binding that is followed.
STEP_NODES: Final = 16


class Node:
    """A prefix of binding keys, with the bindings whose key ends here."""

    __slots__ = ("bindings", "children", "takes_any")

    def __init__(self, word: str) -> None:
        self.children: dict[str, Node] = {}
        self.bindings: dict[Binding, None] = {}
        # A `#` node keeps what it has matched so far while it takes further words.
        self.takes_any = word == ANY_WORDS


class TopicRouter:
    """The trie of the binding keys."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = Node("")

    def validate(self, binding: Binding) -> None:
        """Accept a binding key with at most two `#`.

        Raises:
            PreconditionFailed: 406, there are more.

        Spec: EXCH-41
        """
        routing_key = binding.routing_key
        count = split_words(routing_key).count(ANY_WORDS)
        if count > MAX_ANY_WORDS:
            raise PreconditionFailed(
                f"Topic binding key '{routing_key}' uses {count} '#' wildcards, "
                f"at most {MAX_ANY_WORDS} are allowed"
            )

    def add(self, binding: Binding) -> None:
        """Take in a binding that is not in yet."""
        node = self._root
        for word in split_words(binding.routing_key):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = Node(word)
            node = child
        node.bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        """Take out a binding that is in, and the branch that leads to nothing without it."""
        words = split_words(binding.routing_key)
        path = [self._root]
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].bindings[binding]
        while words and not path[-1].bindings and not path[-1].children:
            path.pop()
            del path[-1].children[words.pop()]

    def drop_destination(self, destination: Destination) -> None:
        """They are removed one by one."""

    def match(self, keys: Sequence[str], headers: Table | None) -> Iterator[Binding | None]:
        """The bindings that match at least one key; one that matches two is named twice.

        None where none was found for a while, as most patterns lead nowhere (LIMIT-23).
        """
        for key in keys:
            nodes: dict[Node, None] = {}
            for _ in self._walk(split_words(key), nodes):
                yield None
            for node in nodes:
                if node.bindings:
                    yield from node.bindings
                else:
                    yield None

    def _walk(self, words: list[str], ends: dict[Node, None]) -> Iterator[None]:
        """Enter all nodes at which the whole message key can end; a step for every few passed."""
        nodes: dict[Node, None] = {}
        _enter(self._root, nodes)
        left = STEP_NODES
        for word in words:
            reached: dict[Node, None] = {}
            for node in nodes:
                left -= 1
                if not left:
                    left = STEP_NODES
                    yield
                if node.takes_any:
                    _enter(node, reached)
                # A message may hold the words `*` and `#` too. As words they lead to the same
                # nodes as the wildcards, which match them anyway.
                _enter(node.children.get(word), reached)
                _enter(node.children.get(ONE_WORD), reached)
            nodes = reached
        ends.update(nodes)


def split_words(key: str) -> list[str]:
    """The words of a key; the empty key has none, and dots side by side hold an empty word."""
    return key.split(".") if key else []


def _enter(node: Node | None, nodes: dict[Node, None]) -> None:
    """Add `node` and what lies behind it without a word, for `#` matches zero words."""
    while node is not None and node not in nodes:
        nodes[node] = None
        node = node.children.get(ANY_WORDS)
