"""The journal through a shared log: what the leader appends to it, and what readers make of it.

State machines without sockets and clock; whoever carries bytes to the log and back is a `LogEdge`.
May import `store/` alone. Start with `log_writer.py`, then `log_view.py` and `mirror.py`;
`record.py` is the format, `log_edge.py` what is asked of the log's engine.
"""
