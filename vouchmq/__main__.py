"""`python -m vouchmq`: the same as the command `vouchmq`."""

import sys

from vouchmq.server.cli.start import main

if __name__ == "__main__":
    sys.exit(main())
