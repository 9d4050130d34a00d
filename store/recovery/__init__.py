"""What a start reads: summaries, the newest segments, a torn tail, damage.

Start with `recover.py`; it decides nothing about AMQP and gives back a `Recovered`.
"""
