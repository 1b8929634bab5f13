"""Set-up's look at the system: what Pillow-SIMD is built with is installed, or named."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def bootstrap() -> Any:
    spec = importlib.util.spec_from_file_location("bootstrap", Path(__file__).parents[1] / "bootstrap.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_headers_of_image_formats_are_installed_or_named(
    bootstrap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "INCLUDE", (str(tmp_path / "all"), str(tmp_path / "machine")))
    monkeypatch.setattr(bootstrap, "java_trouble", lambda: "")
    asked: list[str] = []

    def installs_nothing(groups: list[str]) -> list[str]:
        asked.extend(groups)
        return groups

    monkeypatch.setattr(bootstrap, "apt_install", installs_nothing)
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "tiffio.h").touch()  # where Debian has it
    assert bootstrap.install_system_parts() == 0
    assert {"libwebp-dev", "liblcms2-dev"} <= set(asked) and "libtiff-dev" not in asked
    assert "apt-get install libwebp-dev liblcms2-dev, then make -B setup" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("missing", "status", "said"),
    [
        ("openjdk-17-jre-headless", 0, "no java on the path"),
        ("python3-venv", 1, "apt-get install python3-venv"),
        ("gcc libc6-dev", 0, "no gcc libc6-dev: Pillow-SIMD cannot be built"),
    ],
)
def test_each_missing_part_is_told_for_what_it_is(
    bootstrap: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    missing: str, status: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(bootstrap, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(bootstrap, "system_parts", lambda: {missing: False})
    monkeypatch.setattr(bootstrap, "apt_install", lambda groups: groups)
    monkeypatch.setattr(bootstrap, "java_trouble", lambda: "no java on the path")
    assert bootstrap.install_system_parts() == status
    told = "".join(capsys.readouterr())
    assert said in told and len(told.splitlines()) == 1


def test_pillow_simd_is_built_with_what_is_installed_now(bootstrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda command, **_: commands.append(" ".join(command)))
    bootstrap.install_pillow({"pillow": "pillow==1", "pillow-simd": "pillow-simd==1"})
    assert "--no-binary pillow-simd --refresh-package pillow-simd" in commands[-1]


@pytest.mark.parametrize("status", [0, 1])
def test_a_kernel_that_was_not_compiled_is_told_in_a_line_and_ends_nothing(
    bootstrap: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, status: int
) -> None:
    stale = tmp_path / "pipeline" / "kernel" / "native.abi3.so"
    stale.parent.mkdir(parents=True)
    stale.touch()
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    done = SimpleNamespace(returncode=status)
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda command, **_: done)
    assert bootstrap.compile_kernel() == 0
    assert not stale.exists()  # else an old one would run
    assert len(capsys.readouterr().out.splitlines()) == status
