"""The audit's tables as one HTML page.

Start with `report.py`.
"""
