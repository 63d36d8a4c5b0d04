"""The library cache: libraries are built once, verified, rebuilt if damaged, and shared by processes."""

import ctypes
import errno
import hashlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.fused.programs import random_program
from torchsko.errors import CompilerError
from torchsko.fused.build import kernel_library as compiled
from torchsko.fused.build import library_cache as build
from torchsko.fused.build import progress, toolchain
from torchsko.fused.build.kernel_library import program_digest
from torchsko.fused.build.library_cache import (
    compile_library,
    load_cached_library,
    load_or_build_library,
)
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.calls import cuda_kernel
from torchsko.fused.calls.kernel import build_kernel
from torchsko.fused.emit.cpp import emit_cpp, plan

UNIT = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSKO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def libraries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.so"))


def test_a_library_is_compiled_once(cache):
    assert load_cached_library("ab") is None
    assert compile_library("ab", [UNIT], find_toolchain()).answer() == 42
    found = load_cached_library("ab")
    assert found is not None and found.answer() == 42
    assert {path.suffix for path in cache.iterdir()} == {".so", ".lib"}


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "missing", "unreadable key", "zeros", "empty"]
)
def test_a_damaged_library_is_not_loaded(cache, damage):
    compile_library("ab", [UNIT], find_toolchain())
    (library,) = libraries(cache)
    content = library.read_bytes()
    library.unlink()  # the loaded file keeps its memory; a new one takes its name
    if damage == "truncated":
        library.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        library.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "unreadable key":
        library.write_bytes(content)
        (cache / "ab.lib").write_bytes(b"\xff\x00../../etc/passwd")
    elif damage in ("zeros", "empty"):  # as a full disk, or a machine that stopped, leaves it
        library.write_bytes(content)
        (cache / "ab.lib").write_bytes(bytes(100 if damage == "zeros" else 0))
    assert load_cached_library("ab") is None
    assert compile_library("ab", [UNIT], find_toolchain()).answer() == 42
    assert load_cached_library("ab") is not None


def test_a_damaged_kernel_is_rebuilt(cache):
    program = random_program(1, num_ops=5)
    inputs = [torch.ones(p.shape, dtype=torch.float64) for p in program.inputs]
    before = build_kernel(program, torch.float64)(inputs)
    for library in libraries(cache):
        library.unlink()
        library.write_bytes(b"no library")
    after = build_kernel(program, torch.float64)(inputs)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_a_kernel_from_the_cache_needs_no_compiler_run_and_little_time(cache, monkeypatch):
    program = random_program(2, num_ops=300)
    build_kernel(program, torch.float64)
    monkeypatch.setattr(build, "compile_library", None)
    start = time.perf_counter()
    build_kernel(program, torch.float64)
    assert time.perf_counter() - start < 1.0  # 0.02 s where nothing else runs


def test_different_programs_have_different_keys():
    digests = {program_digest(random_program(seed, num_ops=5)) for seed in range(20)}
    assert len(digests) == 20


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setenv("TORCHSKO_CACHE", str(blocker / "cache"))
    with pytest.warns(UserWarning, match="Every process builds them again"):
        assert compile_library("ab", [UNIT], find_toolchain()).answer() == 42


def test_an_interrupted_write_leaves_nothing_that_is_read(cache, monkeypatch):
    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_library("ab", [UNIT], find_toolchain())
    monkeypatch.undo()
    assert cache.exists() and not list(cache.iterdir())
    assert load_cached_library("ab") is None


def test_the_cache_is_bounded_and_what_was_used_longest_ago_goes_first(cache, monkeypatch):
    keys = [f"{k:064x}" for k in range(4)]
    for k, key in enumerate(keys[:3]):
        compile_library(key, [UNIT.replace("42", str(k))], find_toolchain())
        for path in cache.iterdir():
            os.utime(path, (path.stat().st_mtime - 100,) * 2)  # a while ago, in this order
    (cache / "notes.so").write_text("somebody else's")
    used = load_cached_library(keys[0])
    assert used is not None
    size = max(path.stat().st_size for path in libraries(cache))
    monkeypatch.setattr(build, "_MAX_CACHE_BYTES", 3 * size + 1000)
    compile_library(keys[3], [UNIT.replace("42", "3")], find_toolchain())
    found = [load_cached_library(key) for key in keys]
    assert [library and library.answer() for library in found] == [0, None, 2, 3]
    assert (cache / "notes.so").exists()


def forked(work) -> int:
    """Fork a child that does some work and exits without Python's shutdown; returns its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def assert_whole(cache: Path) -> None:
    """Check that all libraries and keys in a cache folder are complete."""
    for library in libraries(cache):
        content = hashlib.sha256(library.read_bytes()).digest()
        assert hashlib.sha256(content).hexdigest() == library.stem
    for key in cache.glob("*.lib"):
        assert (cache / f"{key.read_text()}.so").exists()


# What a build asks of the system; Python reports it to hooks before it is done.
EVENTS = ("open", "os.", "tempfile.", "fcntl.", "ctypes.dlopen", "subprocess.")


def test_a_build_may_be_killed_at_any_moment(cache, tmp_path, monkeypatch):
    toolchain = find_toolchain()
    made = tmp_path / "made.so"
    source = tmp_path / "made.cpp"
    source.write_text(UNIT)
    build._run_all(toolchain, [["-shared", str(source), "-o", str(made)]])
    monkeypatch.setattr(build, "_run_all", lambda _, jobs, progress: shutil.copy(made, jobs[0][-1]))
    key = "ab" * 32

    def killed_at(moment: int) -> None:
        seen = 0

        def hook(event, _):
            nonlocal seen
            if event.startswith(EVENTS):
                seen += 1
                if seen == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        if load_or_build_library(key, lambda: [UNIT], toolchain).answer() != 42:
            os._exit(1)

    for moment in range(1, 200):
        for path in cache.glob("*"):  # every build starts anew, among what killed ones have left
            if path.suffix in (".so", ".lib"):
                path.unlink()
        _, status = os.waitpid(forked(lambda moment=moment: killed_at(moment)), 0)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert_whole(cache) if cache.exists() else None
    assert 20 < moment < 199  # the last one ran to its end; all before it were killed
    assert_whole(cache)
    found = load_cached_library(key)
    assert found is not None and found.answer() == 42


def test_temporary_files_of_killed_builds_are_removed(cache):
    compile_library("ab", [UNIT], find_toolchain())
    fresh, old = cache / f"{build._TEMPORARY}1", cache / f"{build._TEMPORARY}2"
    for path in (fresh, old):
        path.write_bytes(b"half")
    long_ago = time.time() - 3600
    os.utime(old, (long_ago, long_ago))
    compile_library("cd", [UNIT.replace("42", "43")], find_toolchain())
    assert fresh.exists() and not old.exists()


def counting_compiler(folder: Path, monkeypatch) -> Path:
    """Set CXX to a slow compiler that logs its runs; returns the path of the log."""
    notes, path = folder / "runs", folder / "compiler"
    notes.touch()
    wait = f'case "$*" in *-shared*) echo run >> {notes}; sleep 1;; esac'
    path.write_text(f'#!/bin/sh\n{wait}\nexec {find_toolchain().path} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return notes


def test_processes_and_threads_that_want_one_library_compile_it_once(cache, tmp_path, monkeypatch):
    notes = counting_compiler(tmp_path, monkeypatch)
    toolchain = find_toolchain()

    def wanted() -> bool:
        return load_or_build_library("ab", lambda: [UNIT], toolchain).answer() == 42

    def by_threads() -> None:
        with ThreadPoolExecutor(3) as pool:
            if not all(pool.map(lambda _: wanted(), range(3))):
                os._exit(1)

    children = [forked(by_threads) for _ in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert notes.read_text().split() == ["run"]
    assert {path.suffix for path in cache.iterdir()} == {".so", ".lib"}


def test_the_lock_of_a_killed_process_is_released(cache, tmp_path, monkeypatch):
    notes = counting_compiler(tmp_path, monkeypatch)
    toolchain = find_toolchain()
    child = forked(lambda: load_or_build_library("ab", lambda: [UNIT], toolchain))
    while not notes.read_text():
        time.sleep(0.01)
    assert (cache / "ab.lock").exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert load_or_build_library("ab", lambda: [UNIT], toolchain).answer() == 42
    assert not (cache / "ab.lock").exists()


@pytest.mark.parametrize("becomes", ["nothing", "a file", "read-only"])
def test_a_cache_that_is_lost_during_a_build_costs_the_cache_alone(cache, monkeypatch, becomes):
    def units():
        if becomes == "read-only":
            monkeypatch.setattr(build, "_write", refuse)
            monkeypatch.setattr(Path, "unlink", refuse)
        else:
            shutil.rmtree(cache)
        if becomes == "a file":
            cache.write_text("")
        return [UNIT]

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    said = (
        nullcontext()
        if becomes == "nothing"
        else pytest.warns(UserWarning, match="cannot be cached in")
    )
    with said:
        assert load_or_build_library("ab", units, find_toolchain()).answer() == 42
    monkeypatch.undo()


def test_programs_count_for_the_bound_too(cache, monkeypatch):
    monkeypatch.setattr(build, "_MAX_CACHE_BYTES", 2500)
    names = [f"{k:064x}.program" for k in range(4)]
    for k, name in enumerate(names):
        build.write_cached(name, bytes(1000))
        os.utime(cache / name, (k, k))
    assert sum(path.stat().st_size for path in cache.iterdir()) <= 2500
    assert [build.read_cached(name) is not None for name in names] == [False, False, True, True]


@pytest.mark.nightly
def test_processes_build_the_same_kernel_at_the_same_time(cache):
    code = textwrap.dedent("""
        import torch
        from tests.fused.programs import random_program
        from torchsko.fused.calls.kernel import build_kernel
        program = random_program(3)
        kernel = build_kernel(program, torch.float64)
        inputs = [torch.full((5, *p.shape), 0.5, dtype=torch.float64) for p in program.inputs]
        print(float(sum(y.sum() for y in kernel(inputs))))
    """)
    env = {**os.environ, "TORCHSKO_CACHE": str(cache)}
    root = Path(__file__).parents[2]
    env["PYTHONPATH"] = str(root)
    command = [sys.executable, "-c", code]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]
    printed = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert len(set(printed)) == 1


def test_a_forked_child_has_threads_of_its_own(cache):
    program = random_program(4)
    built = build_kernel(program, torch.float64)
    inputs = [torch.full((50_000, *p.shape), 0.5, dtype=torch.float64) for p in program.inputs]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = built(inputs)
        child = os.fork()
        if child == 0:
            # NumPy: PyTorch's own threads do not survive a fork.
            pairs = zip(built(inputs), expected, strict=True)
            os._exit(0 if all(np.array_equal(x.numpy(), y.numpy()) for x, y in pairs) else 1)
        deadline = time.time() + 60
        done, status = os.waitpid(child, os.WNOHANG)
        while not done and time.time() < deadline:
            time.sleep(0.01)
            done, status = os.waitpid(child, os.WNOHANG)
        if not done:
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert done and status == 0
    finally:
        torch.set_num_threads(before)


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    with pytest.raises(CompilerError, match="CXX"):
        find_toolchain()


def test_a_failing_compiler_is_quoted(cache):
    with pytest.raises(CompilerError, match="no_such_type"):
        compile_library("ab", ["no_such_type x;"], find_toolchain())


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_unit_that_fails_in_parallel_is_compiled_alone(cache, tmp_path, monkeypatch):
    """Of two compiler runs at a time the second fails, as if memory were short."""
    turn = f'mkdir {tmp_path}/busy || exit 1; g++ "$@"; done=$?; sleep 1; rmdir {tmp_path}/busy; exit $done'
    once = f'case "$*" in *-dM*) exec g++ "$@";; *" -c "*) {turn};; esac; exec g++ "$@"'
    monkeypatch.setenv("CXX", script(tmp_path / "narrow", once))
    other = "extern int other(); int more() { return other(); } int other() { return 1; }"
    assert compile_library("ab", [UNIT, other], find_toolchain()).answer() == 42


@pytest.mark.parametrize("before", ["", "launch ", "'with space' "])
def test_a_compiler_may_have_a_launcher_flags_and_spaces(cache, tmp_path, monkeypatch, before):
    seen = tmp_path / "seen"
    for name in ("launch", "with space"):
        script(tmp_path / name, f'echo "$@" >> {seen}; echo said; exec "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CXX", f"{before}g++ -DOWN=1")
    toolchain = find_toolchain()
    text = UNIT.replace("42", "41 + OWN")
    assert compile_library("ab", [text], toolchain).answer() == 42
    assert not before or "-DOWN=1" in seen.read_text()


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("exit 0", "cannot be loaded"),
        ('for last; do :; done; echo nothing > "$last"', "cannot be loaded"),
        (r"printf 'caf\351' >&2; exit 1", "caf\ufffd"),
        ("kill -9 $$", "status -9"),  # as a system short of memory does
        ("echo u.s: No space left on device >&2; exit 1", "set TMPDIR"),
        ('exec gcc "$@"', "Set CXX to g\\+\\+"),  # which links no library of C++
    ],
)
def test_a_compiler_that_fails_in_its_own_way_is_named(cache, tmp_path, monkeypatch, does, words):
    """Regression: the advice for a full disk was another compiler, and for gcc another disk."""
    probe = 'case "$*" in *-dM*) exec g++ "$@";; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "odd", f"{probe}\n{does}"))
    made = f"{UNIT}\nint* more() {{ return new int; }}"
    with pytest.raises(CompilerError, match=words):
        compile_library("ab", [made], find_toolchain())
    monkeypatch.delenv("CXX")
    assert compile_library("ab", [UNIT], find_toolchain()).answer() == 42


@pytest.mark.parametrize("does", ["exit 0", "exec sleep 100", None])
def test_an_invalid_compiler_is_skipped_with_one_warning(tmp_path, monkeypatch, does):
    monkeypatch.setattr(toolchain, "_TIMEOUT", 1)
    none = str(tmp_path / "none") if does is None else script(tmp_path / "none", does)
    monkeypatch.setenv("CXX", none)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(2):
            found = find_toolchain().path
    (told,) = said
    assert "none" not in found
    assert all(x in str(told.message) for x in ("CXX", none, found))


def test_the_output_of_a_compiler_is_not_printed(cache, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CXX", script(tmp_path / "chatty", 'echo hello; exec g++ "$@"'))
    compile_library("ab", [UNIT], find_toolchain())
    assert capfd.readouterr().out == ""


def test_a_full_disk_is_reported(cache, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    toolchain = find_toolchain()
    monkeypatch.setattr(build.tempfile, "TemporaryDirectory", full)
    with pytest.raises(CompilerError, match="set TMPDIR") as told:
        compile_library("ab", [UNIT], toolchain)
    assert "CXX" not in str(told.value)


def test_a_cache_from_which_nothing_runs_costs_the_cache_alone(cache, monkeypatch):
    load = ctypes.CDLL

    def noexec(path):
        if str(cache) in path:
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(build.ctypes, "CDLL", noexec)
    with pytest.warns(UserWarning, match="Set TORCHSKO_CACHE to a folder"):
        assert compile_library("ab", [UNIT], find_toolchain()).answer() == 42


def test_a_user_without_a_home_folder_has_an_error_with_the_variable_to_set(monkeypatch):
    def unknown(user):
        raise KeyError(user)

    monkeypatch.setenv("TORCHSKO_CACHE", "~/kernels")
    assert build.cache_directory() == Path.home() / "kernels"
    for name in ("TORCHSKO_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(CompilerError, match="TORCHSKO_CACHE"):
        build.cache_directory()


def test_units_are_linked_into_one_library(cache):
    units = ["int half();\n" + UNIT.replace("42", "2 * half()"), "int half() { return 21; }\n"]
    library = compile_library("ab", units, find_toolchain())
    assert isinstance(library, ctypes.CDLL) and library.answer() == 42


def test_the_cache_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHSKO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_directory() == tmp_path / "torchsko"


def modules_reached(first: str) -> set[str]:
    """Modules of `torchsko.fused` that a module imports, directly or through others of them."""
    root, reached, waiting = Path(ts.__file__).parent.parent, set(), [first]
    while waiting:
        name = waiting.pop()
        path = root / f"{name.replace('.', '/')}.py"
        if name not in reached and name.startswith("torchsko.fused.") and path.exists():
            reached.add(name)
            waiting += re.findall(r"^\s*(?:from|import) (torchsko[\w.]*)", path.read_text(), re.M)
    return reached


@pytest.mark.parametrize(
    ("files", "first"), [(compiled._GENERATOR, "cpp"), (cuda_kernel._GENERATOR, "cuda")]
)
def test_the_key_of_a_library_includes_every_file_that_generates_its_text(files, first):
    """A file missing from the key would leave stale kernels in the cache."""
    reached = modules_reached(f"torchsko.fused.emit.{first}")
    assert {"torchsko.fused.layout.schedule", "torchsko.fused.layout.skipping"} < reached
    named = {name.removeprefix("torchsko.fused.").replace(".", "/") + ".py" for name in reached}
    assert named <= set(files)
    assert len({compiled._source_digest(file) for file in files}) == len(files)


def test_estimates_of_operations_from_the_program_and_from_its_source_agree():
    quadruped = ts.load(ts.robots.quadruped)

    def step(mech, q, qd):
        after = ts.step(mech, ts.State(q, qd))
        return after.q, after.qd

    program = ts.fuse(step, quadruped).function(("q", "qd")).program
    units = emit_cpp(plan(program, 32, None), bits=64, vector_bytes=32, max_units=2)
    of_source = sum(map(len, units)) / progress.CHARACTERS_PER_OPERATION
    assert program.num_flops > 2000 and 1 / 1.5 < program.num_flops / of_source < 1.5


@pytest.mark.parametrize("has_tqdm", [True, False])
def test_a_long_build_reports_its_stages_with_an_estimate(
    monkeypatch, caplog, capsys, tmp_path, has_tqdm
):
    """Builds of minutes printed nothing."""
    if not has_tqdm:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(progress, "MIN_REPORTED_SECONDS", 0.0)
    monkeypatch.setenv("TORCHSKO_CACHE", str(tmp_path))
    mech = ts.load(ts.robots.panda)
    fast = ts.fuse(lambda mech, q: 3.25 * q.sin() + q.cos(), mech)
    fast(mech.random_state(2)[0])
    text = caplog.text
    assert "operations: traced; the build takes about" in text and "operations: emit" in text
    shown = capsys.readouterr().err if has_tqdm else text
    assert ("compile" in shown) and ("1/1" in shown if has_tqdm else "unit 1 of 1" in shown)
