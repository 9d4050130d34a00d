"""What goes wrong with a broker for tests.

BrokerError            it does not start, or refuses what is asked of it
└─ BrokerNotRunning    it has been stopped, killed, or has ended by itself
AssertionError
└─ WaitTimeout         what a test has waited for has not come
"""


class BrokerError(Exception):
    """The broker does not start, or refuses what is asked of it."""


class BrokerNotRunning(BrokerError):  # noqa: N818 - the name says what is wrong
    """The broker has been stopped, killed, or has ended by itself."""


class WaitTimeout(AssertionError):  # noqa: N818 - what has happened
    """What a test has waited for has not come; says what there was instead."""
