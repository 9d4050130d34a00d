"""What exchanges should match, by simpler means."""

from __future__ import annotations


def topic_oracle(pattern: list[str], words: list[str]) -> bool:
    """EXCH-40 as it is written, by trying every way."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_oracle(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in {"*", words[0]} and topic_oracle(pattern[1:], words[1:])
