"""`python -m diffattn.ops.cpu` compiles the kernel in place."""

import sys

from diffattn.ops.cpu.build import main

if __name__ == "__main__":
    sys.exit(main())
