"""While a wheel or an sdist is built: the SQL is made, and put into it."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildHook(BuildHookInterface[Any]):
    """Where there is no make, as in an image of Python, build/ must be there already."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if shutil.which("make"):
            subprocess.run(["make", "-s", "all", "plain"], cwd=root, check=True)
        scripts = sorted((root / "build").glob("blobgc-*.sql"))
        if not scripts:
            raise RuntimeError("build/ has no SQL, and there is no make to make it")
        if self.target_name == "sdist":  # From which a wheel can be built without make.
            for path in scripts:
                build_data["force_include"][str(path)] = f"build/{path.name}"
            return
        for path in [root / "blobgc.control", *scripts]:
            build_data["force_include"][str(path)] = f"blobgc/sql/{path.name}"
