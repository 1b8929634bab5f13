"""Make `.venv` from the pinned requirements, with the system's parts checked first. Standard library only.

Pillow-SIMD replaces Pillow's files, so the two must never meet in one environment: everything is installed
without dependency resolution (requirements.txt is the full closure, with both), exactly one of the two at the end.
Files whose SHA-256 is not among those in requirements.txt are refused.
"""

import argparse
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
INCLUDE = ("/usr/include", f"/usr/include/{platform.machine()}-linux-gnu", "/usr/local/include")
JAVA, VENV_PARTS = "openjdk-17-jre-headless", "python3-venv"
FORMAT_HEADERS = {"libwebp-dev": "webp/decode.h", "libtiff-dev": "tiffio.h", "liblcms2-dev": "lcms2.h"}
"""What Pillow-SIMD needs to be built with WebP, compressed TIFF and LAB colours."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", action="store_true", help="also what only the tests need (a browser, nginx)")
    parser.add_argument("--kernel", action="store_true", help="only compile the kernel, after a change of it")
    args = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036  the user's python3 may be older than the project allows
        return fail(f"Python {sys.version.split()[0]} is too old: run `make PYTHON=python3.11` with 3.11 or newer")
    if args.tests:
        return install_test_parts()
    if args.kernel:
        return compile_kernel()
    if status := install_system_parts():
        return status
    try:
        install_python_parts()
    except subprocess.CalledProcessError as error:
        step = f"{Path(error.cmd[0]).name} {' '.join(error.cmd[1:3])}"
        return fail(f"`{step} …` ended with status {error.returncode} (its reason is above)")
    (VENV / ".ready").touch()
    return compile_kernel()


def fail(line: str) -> int:
    print(f"set-up: {line}", file=sys.stderr)
    return 1


def say(line: str) -> None:
    print(f"set-up: {line}", flush=True)


# --- the system's parts -------------------------------------------------------------------------------


def install_system_parts() -> int:
    missing = [package for package, present in system_parts().items() if not present]
    left = apt_install(missing)
    if VENV_PARTS in left and not PYTHON.exists():
        return fail(f"{sys.executable} makes no environments: apt-get install {VENV_PARTS}, then make setup")
    if JAVA in left:
        say(f"{java_trouble()}; without it `prepare` runs on one machine only")
    if lean := [package for package in left if package in FORMAT_HEADERS]:
        say(f"Pillow-SIMD will not read some images: apt-get install {' '.join(lean)}, then make -B setup")
    if tools := [package for package in left if package not in (VENV_PARTS, JAVA, *lean)]:
        say(f"no {' '.join(tools)}: Pillow-SIMD cannot be built, using Pillow (everything works, slower)")
    return 0


def system_parts() -> dict[str, bool]:
    return {
        JAVA: not java_trouble(),
        "gcc libc6-dev": shutil.which("cc") is not None,
        "libjpeg-dev zlib1g-dev": has_header("jpeglib.h") and has_header("zlib.h"),
        VENV_PARTS: has_ensurepip(),
        **{package: has_header(name) for package, name in FORMAT_HEADERS.items()},
    }


def java_trouble() -> str:
    """Why Spark cannot use the Java that there is; "" where it can."""
    return runpy.run_path(str(ROOT / "preprocess" / "java.py"))["java"]()[1]


def has_header(name: str) -> bool:
    return any((Path(folder) / name).exists() for folder in INCLUDE)


def has_ensurepip() -> bool:
    return (
        subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0
    )


def apt_install(groups: list[str]) -> list[str]:
    """Install Debian packages as root; returns the groups that are still missing."""
    if not groups:
        return []
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return groups
    packages = " ".join(groups).split()
    say(f"installing {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False, stdout=subprocess.DEVNULL)
    done = subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
        env=environment,
        check=False,
        stdout=subprocess.DEVNULL,
    )
    return groups if done.returncode else []


def install_test_parts() -> int:
    wanted = {
        "chromium": "chromium chromium-driver",
        "nginx": "nginx-light",
        "djpeg": "libjpeg-turbo-progs",
        "ip": "iproute2",
    }
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    left = apt_install([package for tool, package in wanted.items() if not shutil.which(tool, path=path)])
    if left:
        say(f"tests that need it will be skipped: apt-get install {' '.join(left)}")
    (VENV / ".ready-tests").touch()
    return 0


# --- the Python environment ---------------------------------------------------------------------------


def install_python_parts() -> None:
    if not PYTHON.exists():
        say("creating .venv")
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pins = pinned()
    with requirements([pins.pop("uv")]) as file:
        subprocess.run([str(PYTHON), "-m", "pip", "install", "-q", "--no-deps", *file], check=True)
    pillows = {name: pins.pop(name) for name in ("pillow", "pillow-simd")}
    say(f"installing {len(pins) + 1} pinned packages (torch with CUDA is about 5 GB)")
    with requirements(list(pins.values())) as file:
        pip_install(*file)
    install_pillow(pillows)
    pip_install("--no-build-isolation", "--editable", str(ROOT))
    link = ROOT / ".typing" / "feedline"  # how static tools resolve `feedline.*`
    link.parent.mkdir(exist_ok=True)
    if not link.is_symlink():
        link.symlink_to("..")


def compile_kernel() -> int:
    """Beside its sources, for the editable install; a machine that cannot is served all the same."""
    for old in (ROOT / "pipeline" / "kernel").glob("*.so"):
        old.unlink()
    build = [str(PYTHON), "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    loads = [str(PYTHON), "-c", "import feedline.pipeline.kernel.native"]
    if subprocess.run(loads, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode:
        say("the kernel could not be compiled (needed: Cython, a C compiler, Python.h): everything works, slower")
    (VENV / ".ready-kernel").touch()
    return 0


def pinned() -> dict[str, str]:
    """By name: `name==version` and the hashes it may have, as requirements.txt has them."""
    text = (ROOT / "requirements.txt").read_text()
    return {block.partition("==")[0]: block for block in re.split(r"\n(?=[a-z])", text.strip())}


@contextmanager
def requirements(pins: list[str]) -> Generator[list[str]]:
    """The arguments that make pip or uv install just these, refusing files with other hashes."""
    with tempfile.NamedTemporaryFile("w", prefix="feedline-pins-", suffix=".txt") as file:
        file.write("\n".join(pins) + "\n")
        file.flush()
        yield ["--require-hashes", "--requirement", file.name]


def install_pillow(pillows: dict[str, str]) -> None:
    """Pillow-SIMD where it builds, else the Pillow it was made from; never both."""
    subprocess.run(
        [str(VENV / "bin" / "uv"), "pip", "uninstall", "-q", "--python", str(PYTHON), *pillows],
        check=False,
        stderr=subprocess.DEVNULL,
    )
    say("building Pillow-SIMD (about half a minute)")
    try:
        with requirements([pillows["pillow-simd"]]) as file:
            fresh = (
                "--no-binary",
                "pillow-simd",
                "--refresh-package",
                "pillow-simd",
            )  # else uv's of an earlier set-up
            pip_install(*fresh, *file, cc="cc -mavx2" if has_avx2() else "cc")
    except subprocess.CalledProcessError:
        say("Pillow-SIMD could not be built here, using Pillow (everything works, slower)")
        with requirements([pillows["pillow"]]) as file:
            pip_install(*file)


def has_avx2() -> bool:
    info = Path("/proc/cpuinfo")
    return info.exists() and " avx2 " in info.read_text()


def pip_install(*what: str, cc: str | None = None) -> None:
    environment = {**os.environ, **({"CC": cc} if cc else {})}
    command = [str(VENV / "bin" / "uv"), "pip", "install", "-q", "--no-deps", "--compile-bytecode"]
    command += [
        "--python",
        str(PYTHON),
    ]  # byte code: importing torch takes 4 s instead of 13 where Python writes none
    subprocess.run([*command, *what], env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
