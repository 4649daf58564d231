"""Compiled models and their cache: correct results or clear errors after any failure."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.sundials import driver
from dae_hybrid.codegen import cache
from dae_hybrid.codegen import compiler as cc

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
posix = pytest.mark.skipif(os.name != "posix", reason="owners, permissions and signals of POSIX")


#: a compiler that compiles nothing twice, whatever the cache says: libraries by what they are made of
STORING = """#!/bin/sh
out= texts= options=
for argument in "$@"; do
    case $argument in
        --version) exec {real} --version ;;
        *.so) out=$argument ;;
        *.c) texts="$texts $argument" ;;
        -DNOTHING=*) ;;
        *) options="$options $argument" ;;
    esac
done
kept={store}/$({{ echo "$options"; cat $texts; }} | sha256sum | cut -c1-40).so
if [ ! -f "$kept" ]; then
    {real} "$@" || exit
    cp "$out" "$kept.$$" && mv "$kept.$$" "$kept"
else
    exec cp "$kept" "$out"
fi
"""


@pytest.fixture(scope="module")
def storing(tmp_path_factory: Any) -> str | None:
    """Command of the compiler that keeps what it has made; None without a compiler, or a shell."""
    real = cc.find_compiler()
    if real is None or os.name != "posix":
        return None
    store = tmp_path_factory.mktemp("made")
    script = store / "cc"
    script.write_text(STORING.format(real=shlex.join(real), store=store))
    script.chmod(0o700)
    return str(script)


@pytest.fixture
def fresh(monkeypatch: Any, tmp_path: Path, storing: str | None) -> Iterator[Path]:
    """An empty cache of compiled models and no memory of compilers, libraries or warnings."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("DAE_HYBRID_CACHE", str(directory))
    if storing is not None:
        monkeypatch.setenv("CC", storing)
    forget()
    yield directory
    forget()


def contents(fresh: Path) -> list[Path]:
    """Files of the cache, without its marker."""
    folder = fresh / cache.FOLDER
    return [path for path in folder.iterdir() if path.name != cache.MARKER] if folder.is_dir() else []


CACHED = (cc.find_compiler, cc._compiler_identity, driver.driver)


def forget() -> None:
    for function in CACHED:
        function.cache_clear()
    cc._loaded.clear()
    cc._warned.clear()


def check_ball(system: dh.HybridSystem, *, native: bool) -> None:
    assert system.native is native
    assert dh.simulate(system, (0, 3), **TIGHT).functionals["height"] == pytest.approx(0.06870746096576572, abs=1e-7)


def compiled_again(models: Any, monkeypatch: Any) -> int:
    """Number of compilations of a model, as in a new process."""
    forget()
    count, compile_ = 0, cc._compile

    def counting(*arguments: Any, **options: Any) -> bytes:
        nonlocal count
        count += 1
        return compile_(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(cc, "_compile", counting)
        check_ball(models.ball().build(), native=True)
    return count


# -- in order ---------------------------------------------------------------------------------------------


def test_the_cache_is_used(fresh: Path, models: Any, monkeypatch: Any) -> None:
    assert compiled_again(models, monkeypatch) == 2  # the model and the driver
    entries = {path: path.stat().st_mtime_ns for path in contents(fresh)}
    assert len(entries) == 2
    assert compiled_again(models, monkeypatch) == 0
    assert {path: path.stat().st_mtime_ns for path in contents(fresh)} == entries


def test_a_process_loads_a_library_once(fresh: Path, models: Any) -> None:
    one, other = (models.ball().build().modes[0].equations.functions["flow"].address for _ in range(2))
    assert one == other


@posix
def test_the_cache_is_private(fresh: Path, models: Any) -> None:
    before = os.umask(0)
    try:
        check_ball(models.ball().build(), native=True)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (fresh, fresh / cache.FOLDER)} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (fresh / cache.FOLDER).iterdir()} == {0o600}


def test_compiler_options_in_cc(fresh: Path, models: Any, monkeypatch: Any) -> None:
    compiler = cc.find_compiler()
    if compiler is None:
        pytest.skip("no compiler")
    monkeypatch.setenv("CC", " ".join([*compiler, "-DNOTHING=1"]))
    assert compiled_again(models, monkeypatch) == 2
    assert cc.find_compiler() == (*compiler, "-DNOTHING=1")
    monkeypatch.setenv("CC", " ".join([*compiler, "-DNOTHING=2"]))
    assert compiled_again(models, monkeypatch) == 2


@posix
@pytest.mark.parametrize(
    ("command", "options"), [("'{0}'", ""), ('"{0}"', " -DNOTHING=1"), ("{0}", ""), ("{1}", "  -DNOTHING='a b' ")]
)
def test_a_compiler_whose_path_has_spaces(
    command: str, options: str, fresh: Path, models: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    compiler = cc.find_compiler()
    if compiler is None:
        pytest.skip("no compiler")
    path = tmp_path / "my compilers" / "it's cc" if "'" not in command else tmp_path / "my compilers" / "cc"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {shlex.join(compiler)} "$@"\n')
    path.chmod(0o700)
    monkeypatch.setenv("CC", command.format(path, str(path).replace(" ", "\\ ").replace("'", "\\'")) + options)
    assert compiled_again(models, monkeypatch) == 2
    found = cc.find_compiler()
    assert found is not None
    assert found[0] == str(path)
    assert len(found) == (2 if options else 1)


@pytest.mark.parametrize("command", ["'/nowhere/cc", '""', "/no where/cc"])
def test_a_compiler_command_that_cannot_be_run(command: str, fresh: Path, models: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("CC", command)
    cc.find_compiler.cache_clear()
    with pytest.warns(dh.CompilerWarning, match="compiler failed"):
        check_ball(models.ball().build(), native=False)


def test_a_blank_compiler_command_is_none_at_all(fresh: Path, models: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("CC")
    cc.find_compiler.cache_clear()
    found = cc.find_compiler()
    monkeypatch.setenv("CC", "  ")
    cc.find_compiler.cache_clear()
    assert cc.find_compiler() == found


@pytest.mark.parametrize("what", ["_machine", "FLAGS"])
def test_what_is_compiled_anew(what: str, fresh: Path, models: Any, monkeypatch: Any) -> None:
    assert compiled_again(models, monkeypatch) == 2
    monkeypatch.setattr(cc, what, (lambda: "another") if what == "_machine" else (*cc.FLAGS, "-DNOTHING=1"))
    assert compiled_again(models, monkeypatch) == 2


def test_where_the_cache_is(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.delenv("DAE_HYBRID_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_directory() == tmp_path / "dae_hybrid"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_directory() == tmp_path / ".cache" / "dae_hybrid"


# -- compilers that fail ----------------------------------------------------------------------------------


def test_no_compiler(fresh: Path, models: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(cc, "find_compiler", lambda: None)
    with pytest.warns(dh.CompilerWarning, match="No C compiler") as caught:
        check_ball(models.ball().build(), native=False)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_ball(models.ball().build(), native=False)  # warned once


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: Any) -> Callable[[str], Path]:
    """Make a compiler of shell commands: $out is what it has to write, $real the arguments of a real one."""
    real = cc.find_compiler()
    if real is None or os.name != "posix":
        pytest.skip("no compiler, or no shell")

    def make(commands: str) -> Path:
        path = tmp_path / "fake-cc"
        found = 'while [ "$1" ]; do [ "$1" = -o ] && out=$2; shift; done'
        path.write_text(f'#!/bin/sh\nreal="{" ".join(real)} $*"\n{found}\n[ "$out" ] || exit 0\n{commands}\n')
        path.chmod(0o700)
        monkeypatch.setenv("CC", str(path))
        cc.find_compiler.cache_clear()
        return path

    return make


FAILING = {
    "an error": "echo no good >&2; exit 1",
    "an error in another encoding": r"printf '\351\377' >&2; exit 1",
    "nothing written": "exit 0",
    "an empty file": ": > $out",
    "a cut header": "$real && head -c 40 $out > $out.2 && mv $out.2 $out",
    "half a library": "$real && head -c $(($(wc -c < $out) * 3 / 10)) $out > $out.2 && mv $out.2 $out",
    "most of a library": "$real && head -c $(($(wc -c < $out) * 6 / 10)) $out > $out.2 && mv $out.2 $out",
    "garbage": "head -c 20000 /dev/urandom > $out",
    "killed": "kill -9 $$",
    "a full disk": "ulimit -f 8; $real",
}


@pytest.mark.parametrize("commands", list(FAILING.values()), ids=list(FAILING))
def test_a_compiler_that_fails(commands: str, fresh: Path, models: Any, compiler: Any) -> None:
    """With one warning models run interpreted, and nothing of it is kept."""
    compiler(commands)
    with pytest.warns(dh.CompilerWarning, match="compiler failed") as caught:
        check_ball(models.ball().build(), native=False)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_ball(models.ball().build(), native=False)
    assert not contents(fresh)


def test_a_compiler_that_is_not_there(fresh: Path, models: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    cc.find_compiler.cache_clear()
    with pytest.warns(dh.CompilerWarning, match="compiler failed"):
        check_ball(models.ball().build(), native=False)


def test_a_compiler_that_hangs(fresh: Path, models: Any, compiler: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(cc, "COMPILE_TIMEOUT", 0.2)
    compiler("exec sleep 20")
    with pytest.warns(dh.CompilerWarning, match="timed out"):
        check_ball(models.ball().build(), native=False)


def test_no_room_for_temporary_files(fresh: Path, models: Any, monkeypatch: Any) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cc.tempfile, "TemporaryDirectory", full)
    with pytest.warns(dh.CompilerWarning, match="No space left"):
        check_ball(models.ball().build(), native=False)


# -- caches that cannot be used ---------------------------------------------------------------------------


def check_uncached(models: Any, match: str) -> None:
    """Compiled, with one warning."""
    with pytest.warns(dh.CompilerWarning, match=match) as caught:
        check_ball(models.ball().build(), native=True)
    assert len(caught) == 1
    assert "DAE_HYBRID_CACHE" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_ball(models.ball().build(), native=True)


@pytest.mark.parametrize("kind", ["below a file", "is a file"])
def test_a_cache_that_cannot_be_made(kind: str, fresh: Path, models: Any, monkeypatch: Any, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("DAE_HYBRID_CACHE", str(blocker / "cache" if kind == "below a file" else blocker))
    check_uncached(models, "cannot be used")
    assert not fresh.exists()


@posix
def test_a_cache_of_another_user(fresh: Path, models: Any, monkeypatch: Any) -> None:
    fresh.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    check_uncached(models, "another user")
    assert not contents(fresh)


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777], ids=oct)
def test_a_cache_that_others_can_write(mode: int, fresh: Path, models: Any) -> None:
    fresh.mkdir()
    fresh.chmod(mode)
    check_uncached(models, "written by other users")
    assert not contents(fresh)


@pytest.mark.parametrize("moment", ["open", "write", "rename"])
def test_a_full_disk(moment: str, fresh: Path, models: Any, monkeypatch: Any) -> None:
    """The cache is full, the temporary folder is not."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    write = cache._write
    if moment == "rename":
        monkeypatch.setattr(Path, "replace", full)
    else:
        monkeypatch.setattr(cache, "_write", lambda c, d, s: full() if d == fresh / cache.FOLDER else write(c, d, s))
    check_uncached(models, "No space left")
    assert not contents(fresh)


RESTRICTED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
sys.argv[1:] = sys.argv[1:2]
exec(compile(open(__file__.replace("limited", "build")).read(), "build", "exec"))
"""


@posix
@pytest.mark.operation
@pytest.mark.parametrize("limit", [8192, 0, 20_000])
def test_files_that_cannot_grow(limit: int, fresh: Path, right: str) -> None:
    """The size of every file is limited, as on a full disk: of what the compiler writes, and of what is kept."""
    script = fresh.parent / "limited.py"
    script.write_text(RESTRICTED)
    build = write_script(fresh)
    done = run(script, fresh, str(limit), check=False)
    assert done.returncode == 0, done.stderr
    assert float.fromhex(done.stdout) == pytest.approx(float.fromhex(right), rel=1e-6)
    assert done.stderr.count("CompilerWarning") == 1, done.stderr
    assert run(build, fresh).stdout == right


@posix
@pytest.mark.first(1, size="operation")
@pytest.mark.parametrize("home", ["a file", "unset", "empty", "missing", "read-only"])
def test_homes(home: str, fresh: Path, tmp_path: Path, right: str) -> None:
    script = write_script(fresh)
    place = tmp_path / "home"
    if home == "a file":
        place.write_text("")
    elif home == "read-only":
        place.mkdir(mode=0o500)
    environment: dict[str, str | None] = {"DAE_HYBRID_CACHE": None, "XDG_CACHE_HOME": None, "HOME": str(place)}
    if home in ("unset", "empty"):  # the account's home would be written into
        environment["HOME"] = None if home == "unset" else ""
        environment["XDG_CACHE_HOME"] = str(tmp_path / "xdg")
    done = run(script, fresh, check=False, environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == right
    assert done.stderr.count("CompilerWarning") == (home == "a file" or (home == "read-only" and os.geteuid() != 0))


def test_a_home_that_nobody_knows(fresh: Path, models: Any, monkeypatch: Any) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DAE_HYBRID_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    check_uncached(models, "home directory")


def test_a_cache_that_can_only_be_read(fresh: Path, models: Any, monkeypatch: Any) -> None:
    """Its entries are used without a warning."""
    assert compiled_again(models, monkeypatch) == 2
    write = cache._write

    def refuse(content: bytes, directory: Path, suffix: str) -> Path:
        if directory == fresh / cache.FOLDER:
            raise OSError(30, "Read-only file system")
        return write(content, directory, suffix)

    monkeypatch.setattr(cache, "_write", refuse)
    assert compiled_again(models, monkeypatch) == 0


# -- damaged entries --------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def strip_seal(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -cache.SEAL])


def swap(path: Path) -> None:
    """All entries change places: each is whole, and another one's."""
    entries = sorted(path.parent.glob("*.so"))
    contents = [entry.read_bytes() for entry in entries]
    if path == entries[0]:
        for entry, content in zip(entries, contents[1:] + contents[:1], strict=True):
            entry.write_bytes(content)


def link(path: Path) -> None:
    target = path.with_suffix(".elsewhere")
    path.rename(target)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "one bit": flip,
    "garbage": lambda path: path.write_bytes(os.urandom(2000)),
    "only a seal": lambda path: path.write_bytes(path.read_bytes()[-cache.SEAL :]),
    "no seal": strip_seal,
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "swapped": swap,
    "symbolic link": link,
    "pipe": pipe,
    "writable by the group": lambda path: path.chmod(0o620),
    "writable by others": lambda path: path.chmod(0o602),
}


@posix
@pytest.mark.parametrize("damage", list(DAMAGE.values()), ids=list(DAMAGE))
def test_a_damaged_entry_is_made_anew(
    damage: Callable[[Path], None], fresh: Path, models: Any, monkeypatch: Any
) -> None:
    assert compiled_again(models, monkeypatch) == 2
    for path in sorted(contents(fresh)):
        damage(path)
    assert compiled_again(models, monkeypatch) == 2
    assert compiled_again(models, monkeypatch) == 0
    assert all(path.is_file() and not path.is_symlink() for path in contents(fresh) if path.suffix == ".so")


@posix
def test_an_entry_that_cannot_be_replaced(fresh: Path, models: Any, monkeypatch: Any) -> None:
    assert compiled_again(models, monkeypatch) == 2
    for path in contents(fresh):
        directory(path)
    forget()
    check_uncached(models, "directory")


@posix
def test_an_entry_of_another_user(fresh: Path, models: Any, monkeypatch: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    assert compiled_again(models, monkeypatch) == 2
    for path in contents(fresh):
        os.chown(path, 12345, -1)
    assert compiled_again(models, monkeypatch) == 2


def test_a_sound_entry_that_does_not_load(fresh: Path, models: Any, monkeypatch: Any) -> None:
    """Made where other system libraries are, say: compiled again."""
    assert compiled_again(models, monkeypatch) == 2
    for path in contents(fresh):
        cache.keep(path, b"not for here")
    assert compiled_again(models, monkeypatch) == 2


def test_damage_to_an_entry_in_use(fresh: Path, right: str) -> None:
    """A process runs on when the entry is cut off under its feet: it has mapped a copy."""
    script = fresh.parent / "in_use.py"
    script.write_text(
        BUILD.replace("sys.stdout", "import pathlib\nfor path in pathlib.Path(sys.argv[2]).glob('*/*.so'):\n"
                      "    path.write_bytes(b'')\nsys.stdout").replace("m.build()", "system")
        .replace("import pathlib", "system = m.build()\nimport pathlib")
    )  # fmt: skip
    assert run(script, fresh, str(fresh)).stdout == right


def outdated(path: Path, content: bytes = b"half") -> Path:
    """A file that was written long ago."""
    path.write_bytes(content)
    os.utime(path, (time.time() - 2 * cache.STALE,) * 2)
    return path


def test_leftovers_are_swept(fresh: Path, models: Any, monkeypatch: Any) -> None:
    assert compiled_again(models, monkeypatch) == 2
    folder = fresh / cache.FOLDER
    old = [outdated(folder / f"{cache._SCRATCH}{name}") for name in ("abcd_123.tmp", "q.so")]
    new = folder / f"{cache._SCRATCH}new.so"
    new.write_bytes(b"half")
    sample = next(path for path in contents(fresh) if path.suffix == ".so" and path != new and path not in old)
    sample.unlink()
    assert compiled_again(models, monkeypatch) == 1
    assert not any(path.exists() for path in old)
    assert new.exists()


# -- foreign files ----------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[Path, tuple[str, bytes, int]]:
    """Every file and link below a folder, but for the cache's own."""
    return {
        path: (os.readlink(path) if path.is_symlink() else "", path.read_bytes(), path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if cache.FOLDER not in path.parts and (path.is_symlink() or path.is_file())
    }


def test_files_of_the_user_are_left_alone(fresh: Path, models: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """The cache is told to live in a folder that holds other things, under the very names it uses itself."""
    fresh.mkdir(mode=0o700)
    names = ("scratch-results.csv", "scratch-old.tmp", "scratch-x.so", "notes.txt", "model.so", cache.MARKER)
    for name in (*names, f"{cache._SCRATCH}abcd_123.tmp", f"{cache._SCRATCH}abcd_123.so"):
        outdated(fresh / name, b"the work of a year")
    (fresh / "scratch-folder").mkdir()
    outdated(fresh / "scratch-folder" / "scratch-inner.tmp", b"more of it")
    if os.name == "posix":
        target = outdated(tmp_path / "elsewhere.tmp", b"linked")
        (fresh / "scratch-link.tmp").symlink_to(target)
    before = snapshot(fresh)
    assert len(before) >= 9
    assert compiled_again(models, monkeypatch) == 2
    assert compiled_again(models, monkeypatch) == 0
    assert {path.name for path in fresh.iterdir()} == {
        cache.FOLDER,
        *(path.relative_to(fresh).parts[0] for path in before),
    }
    assert snapshot(fresh) == before


def test_what_others_put_into_the_folder_of_the_cache_stays(fresh: Path, models: Any, monkeypatch: Any) -> None:
    """Only regular files with a name that the cache itself gives are swept."""
    assert compiled_again(models, monkeypatch) == 2
    folder, entries = fresh / cache.FOLDER, contents(fresh)
    names = (
        "scratch-old.tmp",
        "notes.txt",
        f"{cache._SCRATCH}a.csv",
        f"{cache._SCRATCH}a.tmp.bak",
        f"my {cache._SCRATCH}a.so",
    )
    kept = [outdated(folder / name) for name in names]
    (folder / f"{cache._SCRATCH}folder.tmp").mkdir()
    kept.append(folder / f"{cache._SCRATCH}folder.tmp")
    if os.name == "posix":
        link = folder / f"{cache._SCRATCH}link.tmp"
        link.symlink_to(kept[0])
        os.utime(link, (0, 0), follow_symlinks=False)
        kept.append(link)
    entries[0].unlink()
    assert compiled_again(models, monkeypatch) == 1
    assert all(path.exists() for path in kept)


@posix
@pytest.mark.parametrize("kind", ["files", "a folder", "another marker", "a link to files", "a link", "a file"])
def test_a_folder_that_the_cache_did_not_make(kind: str, fresh: Path, models: Any, tmp_path: Path) -> None:
    """Is neither read nor written: one warning, and the models are compiled."""
    fresh.mkdir(mode=0o700)
    folder, elsewhere = fresh / cache.FOLDER, tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if kind.startswith("a link"):
        folder.symlink_to(elsewhere)
        if kind == "a link to files":
            outdated(elsewhere / f"{cache._SCRATCH}a.tmp")
    elif kind == "a file":
        folder.write_bytes(b"mine")
    else:
        folder.mkdir(mode=0o700)
        if kind == "files":
            outdated(folder / f"{cache._SCRATCH}a.tmp")
        elif kind == "a folder":
            (folder / "inner").mkdir()
        else:
            (folder / cache.MARKER).symlink_to(outdated(elsewhere / "mark"))
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    check_uncached(models, "not a directory" if "link" in kind or kind == "a file" else "not made by dae_hybrid")
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@posix
def test_an_empty_folder_is_taken(fresh: Path, models: Any, monkeypatch: Any) -> None:
    """A process may have been killed between making the folder and marking it."""
    (fresh / cache.FOLDER).mkdir(parents=True, mode=0o700)
    fresh.chmod(0o700)
    (fresh / cache.FOLDER).chmod(0o700)
    assert compiled_again(models, monkeypatch) == 2
    assert compiled_again(models, monkeypatch) == 0


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707], ids=oct)
def test_a_folder_of_the_cache_that_others_can_write(mode: int, fresh: Path, models: Any) -> None:
    (fresh / cache.FOLDER).mkdir(parents=True)
    fresh.chmod(0o700)
    (fresh / cache.FOLDER).chmod(mode)
    check_uncached(models, "written by other users")
    assert not contents(fresh)


@pytest.mark.operation
def test_processes_that_sweep_at_once(fresh: Path, right: str) -> None:
    """Beside files of the user's, and of processes that are still at work."""
    fresh.mkdir(mode=0o700)
    mine = outdated(fresh / f"{cache._SCRATCH}mine.tmp")
    script = write_script(fresh)
    assert run(script, fresh).stdout == right
    for path in contents(fresh):
        path.unlink()
    old = [outdated(fresh / cache.FOLDER / f"{cache._SCRATCH}{i}.tmp") for i in range(50)]
    processes = [start(script, fresh) for _ in range(4)]
    results = [p.communicate(timeout=120) for p in processes]
    assert [p.returncode for p in processes] == [0] * 4, results
    assert {out for out, _ in results} == {right}
    assert mine.read_bytes() == b"half"
    assert not any(path.exists() for path in old)


# -- several processes ------------------------------------------------------------------------------------

BUILD = """
import dae_hybrid as dh
import sys

m = dh.HybridModel("p")
a = m.parameter("a", 0.5)
x, v = m.differential("x"), m.differential("v")
m.initial(m.mode("run", ode={x: v, v: -a * x}), {x: 1.0, v: 0.0})
m.functional("G", integrand=x)
sys.stdout.write(dh.simulate(m.build(), (0, 1)).functionals["G"].hex())
"""


@pytest.fixture(scope="module")
def right(tmp_path_factory: Any) -> str:
    """Output of BUILD without interference, by the compiler of this machine."""
    folder = tmp_path_factory.mktemp("right")
    return str(run(write_script(folder / "cache"), folder / "cache").stdout)


def write_script(fresh: Path) -> Path:
    script = fresh.parent / "build.py"
    script.write_text(BUILD)
    return script


def start(
    script: Path, cache: Path, *more: str, check: bool = True, environment: dict[str, str | None] | None = None
) -> subprocess.Popen[str]:
    merged = {**os.environ, "DAE_HYBRID_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    merged |= environment or {}  # type: ignore[arg-type]
    command = [sys.executable, *(["-W", "error"] if check else []), str(script), "p", *more]
    kept = {name: value for name, value in merged.items() if value is not None}
    return subprocess.Popen(
        command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def run(
    script: Path, cache: Path, *more: str, check: bool = True, environment: dict[str, str | None] | None = None
) -> Any:
    with start(script, cache, *more, check=check, environment=environment) as process:
        out, err = process.communicate(timeout=120)
    assert not check or process.returncode == 0, err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.operation
def test_processes_that_build_at_once(fresh: Path) -> None:
    script = write_script(fresh)
    processes = [start(script, fresh) for _ in range(4)]
    results = [p.communicate(timeout=120) for p in processes]
    assert [p.returncode for p in processes] == [0] * 4, results
    assert len({out for out, _ in results}) == 1
    assert {path.suffix for path in contents(fresh)} == {".so"}


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


# a compiler that says when it is at work, and stays there for the n-th library
SLOW = 'echo $$ >> "{0}"; [ $(wc -l < "{0}") != {1} ] || sleep 60; $real'


@posix
@pytest.mark.first(1, size="operation")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM], ids=str)
@pytest.mark.parametrize("library", [1, 2], ids=["model", "driver"])
def test_a_build_that_is_ended(how: int, library: int, fresh: Path, compiler: Any, right: str, tmp_path: Path) -> None:
    """While the compiler is at work."""
    script, started = write_script(fresh), tmp_path / "started"
    compiler(SLOW.format(started, library))
    process = start(script, fresh)
    wait_for(lambda: started.exists() and len(started.read_text().split()) == library)
    process.send_signal(how)
    sent = time.monotonic()
    process.wait(timeout=60)
    assert time.monotonic() - sent < 5
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # children of the process
    _, err = process.communicate()
    assert process.returncode != 0
    assert ("KeyboardInterrupt" in err) == (how == signal.SIGINT)
    assert sum(path.suffix == ".so" for path in contents(fresh)) == library - 1
    assert run(script, fresh).stdout == right
    assert sum(path.suffix == ".so" for path in contents(fresh)) == 2


@pytest.mark.operation
@posix
def test_builds_killed_at_any_moment(fresh: Path, right: str) -> None:
    """From before the first compiler to after the last; each time the next process is right."""
    script = write_script(fresh)
    before = time.monotonic()
    run(script, fresh)
    whole = time.monotonic() - before
    for part in (0.4, 0.6, 0.8):
        shutil.rmtree(fresh)
        process = start(script, fresh)
        time.sleep(whole * part)
        process.kill()
        out, _ = process.communicate()
        assert out in ("", right)
        assert run(script, fresh).stdout == right


@posix
@pytest.mark.operation
@pytest.mark.parametrize("step", ["replace", "_write", "_sweep", "CDLL", "unlink"])
def test_a_process_killed_before_each_step(step: str, fresh: Path, right: str) -> None:
    """Steps of loading a library and storing it."""
    script, killing = write_script(fresh), fresh.parent / "killing.py"
    killing.write_text(f"""
import os, signal, pathlib, ctypes
from dae_hybrid.codegen import cache
owner = {{"replace": pathlib.Path, "unlink": pathlib.Path, "CDLL": ctypes}}.get({step!r}, cache)
setattr(owner, {step!r}, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
{BUILD}
""")
    assert run(killing, fresh, check=False).returncode == -signal.SIGKILL
    assert run(script, fresh).stdout == right
    assert run(script, fresh).stdout == right
