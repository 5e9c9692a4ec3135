"""`python -m diffattn.cli`."""

import sys

from diffattn.cli import main

sys.exit(main())
