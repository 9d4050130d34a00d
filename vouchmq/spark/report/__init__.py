"""The audit's tables as one HTML page.

May import `audit/` for the names of verdicts, matplotlib and Jinja2; not Spark. Start with
`report.py`.
"""
