"""How long a turn on a processor a process asks for: the shorter, the sooner it gets one.

Since Linux 6.12 each process may say how long it wants to run in one go. Who asks for little is
put before those who ask for more, each time it wakes up; its share stays what it was. A broker
and its helper sleep between short errands that somebody waits for, so on a busy machine this
halves the wait. Elsewhere nothing is asked, and nothing is lost.
"""

import ctypes
import platform
import struct
from typing import Final

# size, policy, flags, nice, priority, runtime, deadline, period, lowest and highest utilization
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQII")
_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274}
_GET_ATTRIBUTES: Final = {"x86_64": 315, "aarch64": 275}


def ask_for_slice(nanoseconds: int) -> bool:
    """Ask for turns of this length, from 100,000 on; False where that cannot be done.

    Everything else of the calling thread's scheduling stays. Children inherit it.
    """
    machine = platform.machine()
    try:
        call = ctypes.CDLL(None).syscall
        now = ctypes.create_string_buffer(_ATTRIBUTES.size)
        if call(_GET_ATTRIBUTES[machine], 0, now, _ATTRIBUTES.size, 0):
            return False
        size, policy, flags, nice, priority, _, *rest = _ATTRIBUTES.unpack(now.raw)
        if policy:
            # Somebody has chosen another policy for us, whose numbers mean other things.
            return False
        wanted = _ATTRIBUTES.pack(size, policy, flags, nice, priority, nanoseconds, *rest)
        return bool(call(_SET_ATTRIBUTES[machine], 0, wanted, 0) == 0)
    except (OSError, AttributeError, KeyError):
        return False
