"""An environment of its own for every peer, made by the benchmark outside the tree and kept for the next run.

Peers that need torch see this project's own site-packages behind their own, through a `.pth` file: torch is 5 GB, and
the same torch under every loader is also the fairer comparison.
"""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.format.remote import default_cache
from feedline.preprocess.picture import Output

SCRIPTS = Path(__file__).parent


class PeerError(FeedlineError):
    """A peer that cannot be installed or run here; the table says so and goes on."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    name: str
    script: str = ""
    """peer_SCRIPT.py is run with it; empty: peer_NAME.py."""
    packages: tuple[str, ...] = ()
    with_torch: bool = True
    """Sees our site-packages."""
    without_dependencies: tuple[str, ...] = ()
    """Installed second, built against what is there, their own pins ignored."""
    system: tuple[str, ...] = ()
    """Debian packages its build needs."""

    @property
    def installed(self) -> tuple[str, ...]:
        return self.packages + self.without_dependencies


STOCK_PILLOW = "pillow==12.1.1"
"""What `pip install webdataset` and `torchvision` bring. Their `_simd` rows decode with our Pillow-SIMD instead, and
so do LitData, MosaicML and TurboLoader: more than their own users get."""
FFCV_OWN = ("ffcv==1.0.2", "terminaltables", "fastargs", "pytorch_pfn_extras", "imgcat", "assertpy")

PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="torchvision_v1", script="torchvision", packages=(STOCK_PILLOW,)),
        Peer(name="torchvision_v1_simd", script="torchvision"),
        Peer(name="torchvision_v2", script="torchvision"),
        Peer(name="webdataset", packages=(STOCK_PILLOW,)),
        Peer(name="webdataset_simd", script="webdataset"),
        Peer(name="ffcv", packages=("numba", "setuptools", "wheel"), without_dependencies=FFCV_OWN,
             system=("libopencv-dev", "libturbojpeg0-dev", "pkg-config", "g++")),
        Peer(name="dali", packages=("nvidia-dali-cuda120==2.4.0",), with_torch=False),
        Peer(name="spdl", packages=("spdl==0.8.0",), system=("ffmpeg",)),
        Peer(name="litdata", packages=("litdata==0.2.76",)),
        Peer(name="mosaicml", packages=("mosaicml-streaming==0.13.0",)),
        Peer(name="turboloader", packages=("turboloader==2.39.0",)),
        Peer(name="tfdata", packages=("tensorflow-cpu==2.21.0",), with_torch=False),
    )
}  # fmt: skip


def environment() -> dict[str, str]:
    """Of a peer's process: ours, and how feedline prepares by default, for those that resize and encode."""
    prepared = {"SHORT_SIDE_PX": str(Output.size_px), "JPEG_QUALITY": str(Output.quality)}
    return {**os.environ, "PYTHONWARNINGS": "ignore", **prepared}


def interpreter(peer: Peer) -> Path:
    """The Python to run the peer's script with; installs on the first call. Raises PeerError."""
    if not peer.installed:
        return Path(sys.executable)
    folder = default_cache().with_name("peers") / peer.name
    python, ready = folder / "bin" / "python", folder / ".ready"
    wanted = "\n".join(peer.installed)
    if ready.exists() and ready.read_text() == wanted:
        return python
    _run(peer, [sys.executable, "-m", "venv", "--clear", str(folder)])
    if peer.with_torch:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        ours = sysconfig.get_paths()["purelib"]
        (folder / "lib" / version / "site-packages" / "zz_feedline.pth").write_text(ours + "\n")
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if peer.packages:
        _run(peer, [*pip, *peer.packages])
    if peer.without_dependencies:
        _run(peer, [*pip, "--no-build-isolation", "--no-deps", *peer.without_dependencies])
    ready.write_text(wanted)
    return python


def _run(peer: Peer, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        hint = f" (it needs: apt-get install {' '.join(peer.system)})" if peer.system else ""
        raise PeerError(f"{peer.name} cannot be installed{hint}: {lines[-1]}")
