"""`python -m bpg` is `bpg`."""

import sys

from bpg.cli import main

sys.exit(main())
