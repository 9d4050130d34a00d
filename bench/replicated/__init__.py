"""Brokers that keep each message on several machines, measured beside each other."""
