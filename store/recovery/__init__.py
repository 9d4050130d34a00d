"""What a start reads: summaries, the newest segments, a torn tail, damage.

May import `store/` alone; decides nothing about AMQP. Start with `recover.py`, which gives back a
`Recovered`.
"""
