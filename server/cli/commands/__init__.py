"""What each command takes and how it is explained: a module for each group of commands.

A module is imported when one of its commands is run or asked for its help. May import little: the
work is done in the modules of `server/cli`, which a command imports when it runs. Start with
`listing.py`.
"""
