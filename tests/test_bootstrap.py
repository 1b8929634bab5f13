"""Set-up's look at the system: what Pillow-SIMD is built with is installed, or named."""

import importlib.util
from pathlib import Path
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


def test_pillow_simd_is_built_with_what_is_installed_now(bootstrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda command, **_: commands.append(" ".join(command)))
    bootstrap.install_pillow({"pillow": "pillow==1", "pillow-simd": "pillow-simd==1"})
    assert "--no-binary pillow-simd --refresh-package pillow-simd" in commands[-1]
