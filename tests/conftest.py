"""Fixtures for all rooms: tiny raw datasets, drawn once per test process in a fraction of a second."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two test processes' threads would wait for each other
START = str(Path(__file__).with_name("start"))  # what tests start begins a second sooner
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [START, os.environ.get("PYTHONPATH")]))
settings.register_profile(  # a busy machine is no bug: no test asserts how long it took; and a shared folder is none
    "busy", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("busy")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process that tests start compiles all of it again
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background: what tests start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def feedline() -> Generator[Any]:
    """`feedline("verify", "OUT")`: the command in a process of its own that has imported it already."""
    from tests.commands import Commands

    with Commands() as commands:
        yield commands


@pytest.fixture(scope="module", params=["compiled", "python"])
def kernel(request: pytest.FixtureRequest) -> Generator[str]:
    """What makes pixels meanwhile: for modules that hold whichever it is."""
    from feedline.pipeline.kernel import compiled

    if request.param == "compiled" and compiled.KERNEL is None:
        pytest.skip(f"there is no compiled kernel: {compiled.TROUBLE}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(compiled, "KERNEL", None)
        yield request.param


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is marked gpu is skipped where torch sees none."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


TINY: dict[str, Any] = {"images": 48, "classes": 4, "long_side_px": 64, "val_fraction": 0.25, "seed": 3}


def draw(folder: Path, **changes: Any) -> Path:
    from feedline.preprocess.synth.inventory import SynthConfig
    from feedline.preprocess.synth.write import synth

    synth(SynthConfig(out=str(folder), num_workers=0, **(TINY | changes)))
    return folder


@pytest.fixture(scope="session")
def tiny_ilsvrc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three ILSVRC archives: 4 classes, 36 train and 12 val images of 64×48 px or so. Do not write into it."""
    return draw(tmp_path_factory.mktemp("raw") / "ilsvrc")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images as train/ and val/ of class folders. Do not write into it."""
    return draw(tmp_path_factory.mktemp("raw") / "folder", layout="folder")


@pytest.fixture(scope="session")
def odd_ilsvrc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_ilsvrc` but with every oddity; `synth.json` in it names them. Do not write into it."""
    return draw(tmp_path_factory.mktemp("raw") / "odd", oddities=True)


GIL_WATCH = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include <sys/syscall.h>
int PyGILState_Ensure(void) {
    if (syscall(SYS_gettid) != getpid()) write(2, "another thread wants the GIL\\n", 29);
    return ((int (*)(void))dlsym(RTLD_NEXT, "PyGILState_Ensure"))();
}
"""


@pytest.fixture(scope="session")
def gil_watch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which Python says so on its standard error when a thread of a C++ library wants its lock."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("watch")
    (folder / "watch.c").write_text(GIL_WATCH)
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", "-o", folder / "watch.so", folder / "watch.c", "-ldl"], check=True
    )
    return {**os.environ, "LD_PRELOAD": str(folder / "watch.so"), "PYTHONPATH": os.pathsep.join(sys.path)}
