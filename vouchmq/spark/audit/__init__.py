"""`vouchmq audit`: ledgers in; tables, findings and a verdict out.

May import `ledger/`, which reads the files, and `report/` and `witness/`, which share its command.
Start with `audit.py`; `step.py` folds lines into copies, `verdicts.py` judges them.
"""
