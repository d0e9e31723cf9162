"""blobgc: online garbage collection for rows and the objects they stand for.

The loop itself is runner.py at the top of the repository. `blobgc/runner.py` is a link to it, so
that `from blobgc import runner` works in a clone as it does where the wheel is installed: a wheel
has the file in place of the link, and nothing called "runner" beside the package.
"""

__version__ = "0.2.0"
