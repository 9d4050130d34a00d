"""Numbers of queues, channels and virtual hosts that are worked out when somebody asks for them.

May import the whole server. Start with `sizes.py`; `server/admin/details.py` lists what is here.
"""
