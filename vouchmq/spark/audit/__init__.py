"""`vouchmq audit`: ledgers in; tables, findings and a verdict out.

Start with `audit.py`; `step.py` folds lines into copies, `verdicts.py` judges them.
"""
