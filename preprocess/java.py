"""Which Java there is, and whether Spark can use it. Standard library alone: set-up asks before anything is there."""

import os
import re
import shutil
import subprocess
from pathlib import Path

MIN = 17
PACKAGE = f"openjdk-{MIN}-jre-headless"
REMEDY = f"Spark needs Java {MIN} or later (Debian/Ubuntu: apt-get install {PACKAGE})"


def java() -> tuple[str, str]:
    """The version of the Java that Spark would start, "" for none, and why Spark cannot use it, "" where it can."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if program is None:
        return "", f"no java {f'in JAVA_HOME ({home})' if home else 'on the path'}: {REMEDY}"
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{program} does not run ({error}): {REMEDY}"
    match = re.search(r'version "(?:1\.)?(\d[\d.]*)', done.stderr)
    version = match[1] if match else ""
    if version and int(version.split(".")[0]) >= MIN:
        return version, ""
    return version, f"{program} is version {version or 'unknown'}: {REMEDY}"
