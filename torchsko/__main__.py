"""Entry point of ``python -m torchsko``; see `torchsko.cli.main`."""

import sys

from torchsko.cli.main import main
from torchsko.utils.interrupts import restore_interrupt

if __name__ == "__main__":
    restore_interrupt()
    sys.exit(main())
