"""Mode stream: ranges of offsets as batches, each range read by a task of its own.

May import what `source/` has for all modes. Start with `mode.py`, what Spark asks the driver;
`range_reader.py` is what a task does, `bounds.py` finds where streams begin and end, `ranges.py`
divides offsets among tasks.
"""
