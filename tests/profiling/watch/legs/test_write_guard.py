"""A script that runs for us a second time changes nothing of its user's, and does not notice."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from feedline.profiling.record.journal import Journal
from feedline.profiling.watch.legs.elsewhere import remove_empty_folders

PRELUDE = """
import json, os, sys
from pathlib import Path
from feedline.profiling.record.journal import Journal, Options
from feedline.profiling.probe import start
start(Journal(Path({folder!r})), Options(mode="legs", scratch={scratch!r}))
"""


def run(tmp_path: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """The text as a script in tmp_path/work, its writes held back."""
    for name in ("scratch", "folder", "work"):
        (tmp_path / name).mkdir(exist_ok=True)
    prelude = PRELUDE.format(scratch=str(tmp_path / "scratch"), folder=str(tmp_path / "folder"))
    code = prelude + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "work", capture_output=True, text=True)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A user's folder after a first run: a log, a checkpoint and its predecessor."""
    folder = tmp_path / "work"
    (folder / "runs").mkdir(parents=True)
    (folder / "log.txt").write_text("epoch 1\n")
    (folder / "best.pt").write_text("best")
    (folder / "runs" / "old.pt").write_text("old")
    return folder


WRITES = {
    "overwriting": "open('log.txt', 'w').write('gone')",
    "appending": "open('log.txt', 'a').write('more')",
    "updating": "f = open('log.txt', 'r+'); f.seek(0); f.write('x'); f.close()",
    "pathlib": "Path('log.txt').write_text('gone'); Path('new.txt').write_bytes(b'x'); Path('other').touch()",
    "os.open": "h = os.open('log.txt', os.O_WRONLY | os.O_TRUNC); os.write(h, b'gone'); os.close(h)",
    "removing": "os.remove('log.txt'); Path('best.pt').unlink()",
    "renaming": "os.rename('log.txt', 'log.1.txt'); os.replace('best.pt', 'log.txt')",
    "atomic save": "open('tmp', 'w').write('new'); os.replace('tmp', 'best.pt')",
    "removing folders": "import shutil; shutil.rmtree('runs')",
    "copying": "import shutil; shutil.copy('best.pt', 'log.txt'); shutil.move('log.txt', 'runs/log.txt')",
    "truncating": "os.truncate('log.txt', 0)",
    "absolute": "open(os.path.abspath('../work/log.txt'), 'w').write('gone')",
    "file objects": "import io; io.FileIO('log.txt', 'w').write(b'gone')",
    "taken before us": "import bz2, tarfile; bz2.open('log.txt', 'wb').close(); tarfile.open('best.pt', 'w').close()",
    "beside a folder": (
        "at = os.open('.', os.O_RDONLY); os.unlink('best.pt', dir_fd=at);"
        "os.open('log.txt', os.O_WRONLY | os.O_TRUNC, dir_fd=at); os.rename('runs/old.pt', 'x', dst_dir_fd=at)"
    ),
    "writing through a link": (
        "os.symlink('log.txt', 'now'); os.symlink('runs', 'last'); os.link('best.pt', 'copy');"
        "[Path(one).write_text('gone') for one in ('now', 'last/old.pt', 'copy')]"
    ),
    "parquet": (
        "import pyarrow as pa, pyarrow.parquet as pq, pyarrow.feather; table = pa.table({'a': [1]});"
        "pq.write_table(table, 'log.txt'); pq.write_table(table=table, where='best.pt');"
        "pyarrow.feather.write_feather(table, 'runs/old.pt'); assert pq.read_table(open('log.txt', 'rb')) == table"
    ),
    "torch script": (
        "import torch; script = torch.jit.script(torch.nn.Linear(1, 1));"
        "torch.jit.save(script, 'best.pt'); script.save('runs/old.pt'); script.save(Path('log.txt'))"
    ),
    "a database": (
        "import sqlite3, sqlite3.dbapi2;"
        "[one.execute('create table t (x)') for one in (sqlite3.connect('a.db'), sqlite3.dbapi2.connect('b.db'))]"
    ),
    "safetensors": "import numpy, safetensors.numpy as sn; sn.save_file({'a': numpy.zeros(1)}, 'log.txt')",
    "numpy": "import numpy; numpy.save('best.pt', numpy.zeros(3)); numpy.savetxt('log.txt', numpy.zeros(3))",
    "csv": "import csv; csv.writer(open('log.txt', 'w', newline='')).writerow([1, 2])",
}


H5PY = """
import posix


class File:
    def __init__(self, name, mode="r", **others):
        fresh = posix.O_CREAT | posix.O_EXCL
        flags = {"w": posix.O_CREAT | posix.O_TRUNC, "a": posix.O_CREAT | posix.O_APPEND, "w-": fresh, "x": fresh}
        self.handle = posix.open(name, posix.O_RDWR | flags.get(mode, 0) if mode != "r" else posix.O_RDONLY)

    def write(self, data):
        posix.write(self.handle, data)

    def read(self):
        return posix.read(self.handle, 100)
"""


@pytest.mark.parametrize("mode", ["w", "a", "r+", "x"])
def test_hdf5_is_held_back(mode: str, tmp_path: Path, work: Path) -> None:
    package = tmp_path / "packages" / "h5py"
    (package / "_hl").mkdir(parents=True)
    (package / "__init__.py").write_text("from h5py._hl.files import File")
    (package / "_hl" / "__init__.py").touch()
    (package / "_hl" / "files.py").write_text(H5PY)
    before = contents(work)
    done = run(
        tmp_path,
        f"""
        sys.path.insert(0, {str(package.parent)!r})
        import h5py
        h5py.File("log.txt", {mode!r}).write(b"gone")
        print(h5py.File(name="log.txt").read().decode())
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == {"a": "epoch 1\ngone", "r+": "goneh 1"}.get(mode, "gone")
    assert contents(work) == before


@pytest.mark.parametrize("name", WRITES)
def test_the_users_files_stay_as_they_are(name: str, tmp_path: Path, work: Path) -> None:
    before = contents(work)
    done = run(tmp_path, WRITES[name])
    assert done.returncode == 0, done.stderr
    assert contents(work) == before


def test_what_was_written_can_be_read_again(tmp_path: Path, work: Path) -> None:
    done = run(
        tmp_path,
        """
        open("log.txt", "a").write("epoch 2\\n")
        open("tmp", "w").write("better")
        os.replace("tmp", "best.pt")
        Path("out").mkdir()
        Path("out/config.json").write_text("{}")
        print(json.dumps([open("log.txt").read(), Path("best.pt").read_text(), os.path.exists("tmp"),
                          os.path.getsize("best.pt"), Path("out/config.json").is_file()]))
        """,
    )
    assert json.loads(done.stdout) == ["epoch 1\nepoch 2\n", "better", False, 6, True]


def test_modes_times_and_links_stay_and_are_seen_as_changed(tmp_path: Path, work: Path) -> None:
    before = [(path.name, path.stat().st_mode, path.stat().st_mtime_ns) for path in sorted(work.rglob("*"))]
    done = run(
        tmp_path,
        """
        import shutil
        os.chmod("log.txt", 0); os.utime("best.pt", (1, 1)); Path("log.txt").touch(); os.mkfifo("pipe")
        shutil.copy2("best.pt", "new.pt"); os.chmod("new.pt", 0o600)
        os.symlink("new.pt", "tmp"); os.replace("tmp", "latest.pt")
        os.mkdir("out.tmp"); Path("out.tmp/x").write_text("x"); os.rename("out.tmp", "out")
        print(json.dumps([oct(os.stat("new.pt").st_mode), Path("latest.pt").read_text(), os.readlink("latest.pt"),
                          Path("out/x").read_text(), os.path.exists("pipe"), os.access("new.pt", os.R_OK)]))
        try: open("new.pt", "x")
        except FileExistsError: pass
        else: sys.exit("made twice")
        """,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["0o100600", "best", str(work / "new.pt"), "x", True, True]
    (work / "out.tmp").rmdir()  # an empty folder: the parent's to remove
    assert [(path.name, path.stat().st_mode, path.stat().st_mtime_ns) for path in sorted(work.rglob("*"))] == before


def test_a_folder_the_first_run_made_may_be_made_again(tmp_path: Path, work: Path) -> None:
    text = "os.mkdir('runs'); os.makedirs('runs/x'); Path('runs/x/y').mkdir(parents=True); os.makedirs('a/b/c')"
    assert run(tmp_path, text).returncode == 0
    assert (work / "a" / "b" / "c").is_dir()
    remove_empty_folders(Journal(tmp_path / "folder"))
    assert not (work / "a").exists()
    assert (work / "runs").exists()


def test_temporary_files_are_real_and_go_away(tmp_path: Path, work: Path) -> None:
    done = run(
        tmp_path,
        """
        import subprocess, tempfile
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("seen by others"); file.flush()
            print(subprocess.run(["cat", file.name], capture_output=True, text=True).stdout)
            name = file.name
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "x").write_text("x")
        print(os.path.exists(name), os.path.exists(folder))
        """,
    )
    assert done.stdout.split("\n")[:2] == ["seen by others", "False False"]


def test_special_files_and_standard_output_are_left_alone(tmp_path: Path, work: Path) -> None:
    done = run(
        tmp_path, "open('/dev/null', 'w').write('x'); os.open('/dev/null', os.O_RDWR); open(1, 'w').write('out')"
    )
    assert done.stdout == "out"
