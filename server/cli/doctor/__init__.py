"""`vouchmq doctor`: what is wrong with a set-up, and how to mend it.

Each check looks at one thing and gives findings; none changes anything but a file without a name
that it syncs. May import what the broker's start checks, too. Start with `run.py`.
"""
