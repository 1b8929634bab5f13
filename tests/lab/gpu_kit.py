"""What a rented machine with a GPU lacks, in one folder: `make gpu-kit`.

    python -m tests.lab.gpu_kit [--python 3.12 --out gpu-kit --images 64]

Wheels of the small packages that a machine with torch may be without, for its Python (the pinned versions, by their
hashes), feedline's own metadata and its compiled kernel, and small prepared shards of every codec. torch,
torchvision, numpy, pyarrow, OpenCV and Pillow are not small: the machine's own are used. Copy the checkout with the
folder in it to the machine; there `python3 tests/lab/gpu_run.py` installs, links and runs, without network, Java and
Spark. At most 48 MiB.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bootstrap import pinned, requirements
from feedline.benchmarks.sample_shards import make_shards

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 48 << 20
WHEELS = (
    "simplejpeg", "line-profiler", "webdataset", "braceexpand", "pyyaml",
    "typer", "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "shellingham", "annotated-doc",
    "rich", "typing-extensions", "pygments", "markdown-it-py", "mdurl",
    "jinja2", "markupsafe", "psutil", "nvidia-ml-py", "cloudpickle", "fsspec",
    "pytest", "pytest-timeout", "iniconfig", "pluggy", "packaging", "hypothesis", "sortedcontainers",
)  # fmt: skip
THERE = ("torch", "torchvision", "numpy", "pyarrow", "opencv-python-headless", "pillow")
"""What a machine for training has, too large to carry."""
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--python", default="3.12", help="that of the machine")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-kit")
    parser.add_argument("--images", type=int, default=64, help="of the synthetic set, train and val")
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    download(args.out / "wheels", args.python)
    if missing := lacking(args.out / "wheels", args.python):
        print(f"the wheels need {', '.join(sorted(missing))} too: name them in WHEELS", file=sys.stderr)
        return 1
    metadata(args.out)
    for kernel in (ROOT / "pipeline" / "kernel").glob("native.abi3.so"):  # for every Python from 3.11 on
        shutil.copyfile(kernel, args.out / kernel.name)
    with tempfile.TemporaryDirectory(prefix="feedline-kit-") as scratch:
        made = make_shards(Path(scratch), images=args.images, epoch=0)
        shutil.copytree(made, args.out / "shards", ignore=shutil.ignore_patterns(".*"))
    size_bytes = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    count = len(list((args.out / "wheels").iterdir()))
    print(f"{args.out}: {count} wheels for Python {args.python}, shards of {args.images} pictures, "
          f"{size_bytes / 2**20:.1f} MiB. On the machine: python3 tests/lab/gpu_run.py tests check")  # fmt: skip
    if size_bytes > MOST_BYTES:
        print(f"that is more than {MOST_BYTES >> 20} MiB: give fewer --images", file=sys.stderr)
        return 1
    return 0


def download(folder: Path, python: str) -> None:
    pins = pinned()
    words = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    places = [word for platform in PLATFORMS for word in ("--platform", f"{platform}_x86_64")]
    with requirements([pins[name] for name in WHEELS]) as these:
        command = [sys.executable, *words, *places, "--python-version", python, "--dest", str(folder), *these]
        subprocess.run(command, check=True)


def lacking(folder: Path, python: str) -> set[str]:
    """What the wheels need and neither is among them nor on the machine."""
    about = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
    needs: set[str] = set()
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            headers = Parser().parsestr(archive.read(name).decode(), headersonly=True)
        requirements = [Requirement(line) for line in headers.get_all("Requires-Dist", [])]
        needs |= {one.name for one in requirements if one.marker is None or one.marker.evaluate(about)}
    return {canonicalize_name(name) for name in needs} - {*WHEELS, *THERE}


def metadata(folder: Path) -> None:
    """`feedline-VERSION.dist-info`: the version and the extras, which the command line asks for."""
    code = f"from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    for left in folder.glob("*.egg-info"):
        shutil.rmtree(left)


if __name__ == "__main__":
    sys.exit(main())
