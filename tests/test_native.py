"""C files: built once, whole, for this processor; and everything works without them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from twm import native

SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C file, and a cache of its own; tests of the real files elsewhere need a compiler as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TWM_NATIVE", raising=False)
    monkeypatch.setattr(native, "halves", lambda: False)  # to find out takes a C file, too
    native._load.cache_clear()
    path = tmp_path / "answer.c"
    path.write_text(SOURCE)
    return path


def built() -> list[Path]:
    return list(native.cache().iterdir())


def test_built_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = native.load(source)
    assert library is not None
    assert library.answer() == 42
    native._load.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("built again"))
    assert native.load(source) is not None
    assert len(built()) == 1


def test_another_source_is_another_library(source: Path) -> None:
    native.load(source)
    native._load.cache_clear()
    source.write_text(SOURCE.replace("42", "43"))
    library = native.load(source)
    assert library is not None
    assert library.answer() == 43
    assert len(built()) == 2


def test_another_header_is_another_library(source: Path) -> None:
    header = source.with_name("answer.h")
    source.write_text('#include "answer.h"\nint answer(void) { return ANSWER; }\n')
    for number in (42, 43):
        header.write_text(f"#define ANSWER {number}\n")
        native._load.cache_clear()
        library = native.load(source)
        assert library is not None
        assert library.answer() == number


def test_several_processes_may_build_at_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All get the library, and nothing half-written stays behind."""
    monkeypatch.setenv("TWM_NATIVE", "-halves")  # to find out takes a C file, too
    code = f"from twm import native; from pathlib import Path; print(native.load(Path({str(source)!r})).answer())"
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(subprocess.check_output, [sys.executable, "-c", code], text=True) for _ in range(4)]
    assert [run.result().strip() for run in runs] == ["42"] * 4
    assert len(built()) == 1


@pytest.mark.parametrize("text", ["int answer(void) { return }", "int answer(void) { return missing(); }"])
def test_what_cannot_be_built_is_done_without(source: Path, text: str) -> None:
    source.write_text(text)
    assert native.load(source) is None
    assert built() == []


def test_no_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert native.compiler() == []
    assert native.load(source) is None


def test_named_compiler_with_options(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write_text("int answer(void) { return ANSWER; }\n")
    monkeypatch.setenv("CC", "cc -DANSWER=43")
    library = native.load(source)
    assert library is not None
    assert library.answer() == 43


@pytest.mark.parametrize("named", ["no-such-compiler", "cc '"])
def test_no_such_compiler(source: Path, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", named)
    assert native.compiler() == []
    assert native.load(source) is None


@pytest.mark.parametrize("path", native.SOURCES, ids=lambda path: path.stem)
@pytest.mark.parametrize("lanes", [4, 8, 16, "16 of 8", "tiles", "halves"])
@pytest.mark.parametrize("program", ["gcc", "clang"])
def test_no_warnings(path: Path, lanes: int | str, program: str, tmp_path: Path) -> None:
    """With vectors of 4, 8 and 16 numbers and with tiles, also where the processor has none of 16 and no tiles."""
    tiles = ["-march=sapphirerapids", "-DTILES"]
    widths = {
        "tiles": tiles,
        "halves": [*tiles, "-DHALVES"],
        "16 of 8": ["-DLANES=16", "-mno-avx512f", "-Wno-psabi"],
    }
    width = widths.get(str(lanes), [f"-DLANES={lanes}"])
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    strict = [program, *native.FLAGS, "-Wextra", "-Werror", *width]
    (tmp_path / "empty.c").touch()
    if subprocess.run([*strict, tmp_path / "empty.c", "-o", tmp_path / "x.so"], capture_output=True).returncode:
        pytest.skip(f"{program} does not know {' '.join(width)}")
    subprocess.run([*strict, path, "-o", tmp_path / "x.so"], check=True)
    if lanes in ("tiles", "halves") and path.stem in ("products", "transformer_step"):
        defined = subprocess.run(
            [program, *width, "-dM", "-E", path], check=True, capture_output=True, text=True
        ).stdout
        assert "#define HAVE_TILES 1\n" in defined


def test_no_place_to_keep_it(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))  # a file, not a directory
    assert native.load(source) is None


def test_no_home(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(
        Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory."))
    )
    assert native.load(source) is None


def test_others_may_read_it(source: Path) -> None:
    native.load(source)
    assert built()[0].stat().st_mode & 0o555 == 0o555


def test_switched_off(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with native.plain_only():
        assert native.load(source) is None
    assert native.load(source) is not None
    monkeypatch.setenv("TWM_NATIVE", "0")
    assert native.load(source) is None


def test_some_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    here = native.loaded()
    monkeypatch.setenv("TWM_NATIVE", "-latents, -screen")
    assert native.loaded() == [name for name in here if name not in ("latents", "screen")]
    for wrong in ("latents", "-latent", "vectors", "1", "-latents,"):
        monkeypatch.setenv("TWM_NATIVE", wrong)
        with pytest.raises(ValueError, match=r"TWM_NATIVE: expected 0 .* latents, .*, got '"):
            native.loaded()


def test_tiles_only_where_the_system_grants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    native.tiles.cache_clear()
    granted = native.tiles()
    assert not granted or "amx_bf16" in Path("/proc/cpuinfo").read_text()
    native.tiles.cache_clear()
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert not native.tiles()
    assert not native.halves()
    native.tiles.cache_clear()


def test_tiles_or_those_of_float16_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    native.tiles.cache_clear()
    tiles = native.tiles()
    monkeypatch.setenv("TWM_NATIVE", "-halves")
    native.tiles.cache_clear()
    assert native.tiles() == tiles
    assert not native.halves()
    monkeypatch.setenv("TWM_NATIVE", "-tiles")
    native.tiles.cache_clear()
    assert not native.tiles()
    assert not native.halves()
    native.tiles.cache_clear()
