"""python -m blobgc."""

import sys

from blobgc.cli import main

sys.exit(main())
