"""`python -m vouchmq.management OPTIONS`: the program that `vouchmq serve` starts and watches."""

import sys

from vouchmq.management.process import run_watched

if __name__ == "__main__":
    sys.exit(run_watched(sys.argv[1]))
