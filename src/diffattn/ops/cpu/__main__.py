"""`python -m diffattn.ops.cpu` compiles the kernel in place."""

import sys

from diffattn.ops.cpu.build import main

sys.exit(main())
