"""All channels at once; apart from the reader, for a compiled class cannot extend a builtin."""


class EveryChannel(set[int]):
    """Stands for all channels but 0, which is the connection's own."""

    def __contains__(self, channel: object) -> bool:
        return channel != 0
