"""Compile C++ to shared libraries and keep them on disk.

The cache holds, for every key, a text file ``<key>.lib`` with the SHA-256 of a library and the
library itself under that digest. Both are written to a temporary file and renamed, the library
first; so a build that is interrupted or killed leaves nothing that is read, and a library whose bytes no
longer give its name is rebuilt. Who builds a library holds a lock on its key: others wait for it and load it.
The cache is bounded: what was used longest ago goes first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from string import hexdigits

from torchsko.errors import CompilerError, caller_stack_level
from torchsko.fused.build.file_lock import locked
from torchsko.fused.build.toolchain import TEXT, Toolchain, digest_of

_SECONDS = 600

# Of the cache. A humanoid's kernels take some MiB each.
_MOST_BYTES = 2**31
_SUFFIXES = (".so", ".lib", ".program", ".ports", ".cubin", ".lock")
_TEMPORARY = ".torchsko-"


def cache_directory() -> Path:
    """``$TORCHSKO_CACHE``, else ``torchsko`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        CompilerError: nothing says where the user's home is.
    """
    try:
        if own := os.environ.get("TORCHSKO_CACHE"):
            return Path(own).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchsko"
    except RuntimeError as error:
        raise CompilerError(
            "no folder for kernels: the environment has no HOME, and the system knows none of this user.",
            "Kernels are kept on disk.",
            "Set TORCHSKO_CACHE to a folder of this user.",
        ) from error


def built_library(
    key: str, units: Callable[[], Sequence[str]], toolchain: Toolchain
) -> ctypes.CDLL:
    """The library stored under a key, compiled if there is none; once, however many ask for it at a time.

    Args:
        key: name in the cache, of hexadecimal digits.
        units: gives the C++ texts.
        toolchain: the compiler.

    Raises:
        CompilerError: the compiler failed; the message holds its own.
    """
    found = cached_library(key)
    if found is not None:
        return found
    with locked(cache_directory() / f"{key}.lock"):
        return cached_library(key) or compile_library(key, units(), toolchain)


def compile_library(key: str, units: Sequence[str], toolchain: Toolchain) -> ctypes.CDLL:
    """Compile translation units in parallel, link them, store the library and load it.

    Args:
        key: name in the cache, of hexadecimal digits; see `cached_library`.
        units: the C++ texts.
        toolchain: the compiler.

    Raises:
        CompilerError: the compiler failed; the message holds its own.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="torchsko-") as name:
            folder = Path(name)
            built = folder / "kernel.so"
            objects = [folder / f"u{k}.o" for k in range(len(units))]
            jobs = []
            for text, target in zip(units, objects, strict=True):
                source = target.with_suffix(".cpp")
                source.write_text(text, encoding="ascii")
                jobs.append(["-c", str(source), "-o", str(target)])
            if len(units) == 1:
                jobs = [["-shared", str(objects[0].with_suffix(".cpp")), "-o", str(built)]]
            _run_all(toolchain, jobs)
            if len(units) > 1:
                _run_all(toolchain, [["-shared", *map(str, objects), "-o", str(built)]])
            return _loaded(_store(key, built.read_bytes()), built)
    except OSError as error:
        raise CompilerError(_unloaded(toolchain, error)) from error


def _unloaded(toolchain: Toolchain, error: OSError) -> str:
    """Message that there is no library, by what went wrong."""
    if _is_full(str(error)):
        return _full()
    said = f"{toolchain.path} left no library that can be loaded: {error}.\n"
    if "undefined symbol" in str(error):
        return (
            f"{said}A compiler of C, as gcc is, leaves out the library of C++.\n"
            "Set CXX to g++ or clang++, or unset it."
        )
    return (
        f"{said}A disk may be full, or one from which nothing is run (noexec).\n"
        "Set TMPDIR and TORCHSKO_CACHE to other folders, CXX to another compiler, or use the eager "
        "functions."
    )


def _is_full(said: str) -> bool:
    """Whether a text, of a compiler or an error, says that a disk is full."""
    return any(os.strerror(x) in said for x in (errno.ENOSPC, errno.EDQUOT))


def _full() -> str:
    """Message that there is no room to compile in."""
    return (
        f"no room to compile a fused kernel in {tempfile.gettempdir()}: the disk is full, or a quota is.\n"
        "The compiler writes its files there.\n"
        "Free some space, set TMPDIR to a folder on another disk, or use the eager functions."
    )


def _loaded(stored: Path | None, built: Path) -> ctypes.CDLL:
    """The library from its place in the cache; from where it was built if it cannot be run there."""
    try:
        return ctypes.CDLL(str(stored or built))
    except OSError as error:
        library = ctypes.CDLL(str(built))
        _say_not_kept(error)
        return library


def _run_all(toolchain: Toolchain, jobs: Sequence[Sequence[str]]) -> None:
    """Run the compiler side by side; what fails so runs once more alone, when all memory is its own."""
    for job, _ in _failed(toolchain, jobs):
        for _, said in _failed(toolchain, [job]):
            if _is_full(said):
                raise CompilerError(_full())
            raise CompilerError(
                f"{toolchain.path} failed on a fused kernel:",
                f"{said[-2000:]}",
                "Set CXX to another compiler, or use the eager functions.",
            )


def _failed(toolchain: Toolchain, jobs: Sequence[Sequence[str]]) -> list[tuple[Sequence[str], str]]:
    """Run the compiler side by side; the jobs that fail, and what it says of each."""
    running: list[subprocess.Popen[str]] = []
    failed = []
    try:
        for job in jobs:
            command = [toolchain.path, *toolchain.flags, *job]
            running.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **TEXT)
            )
        for job, process in zip(jobs, running, strict=True):
            _, said = process.communicate(timeout=_SECONDS)
            if process.returncode != 0:
                failed.append(
                    (job, said or f"It ended with status {process.returncode}, without a word.")
                )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"{toolchain.path} could not build a fused kernel: {error}") from error
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return failed


def cached_library(key: str) -> ctypes.CDLL | None:
    """The library stored under a key, or None if there is none or its bytes have changed."""
    folder = cache_directory()
    try:
        digest = (folder / f"{key}.lib").read_text(encoding="ascii").strip()
        if not _is_digest(digest):
            return None
        library = folder / f"{digest}.so"
        if digest_of(library.read_bytes()) != digest:
            return None
        for used in (folder / f"{key}.lib", library):
            _touch(used)
        return ctypes.CDLL(str(library))
    except (OSError, UnicodeDecodeError):
        return None


def name_again(key: str, name: str) -> None:
    """Store the library under a second key; nothing happens where it is not in the cache."""
    folder = cache_directory()
    try:
        _write(folder / f"{name}.lib", (folder / f"{key}.lib").read_bytes())
    except OSError:
        return


def read_cached(name: str) -> bytes | None:
    """The content of a file that `write_cached` wrote, None if it is not there or has changed."""
    try:
        content = (cache_directory() / name).read_bytes()
    except OSError:
        return None
    _touch(cache_directory() / name)
    digest, payload = content[:64], content[64:]
    return payload if digest == digest_of(payload).encode() else None


def write_cached(name: str, payload: bytes) -> None:
    """Store a file with its digest; nothing happens where the cache cannot be written."""
    folder = cache_directory()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / name, digest_of(payload).encode() + payload)
        trim_cache(_MOST_BYTES, keep=folder / name)
    except OSError:
        return


def _store(key: str, library: bytes) -> Path | None:
    """The library's place in the cache, or None where the cache cannot be written."""
    folder, digest = cache_directory(), digest_of(library)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / f"{digest}.so", library)
        _write(folder / f"{key}.lib", digest.encode())
        trim_cache(_MOST_BYTES, keep=folder / f"{digest}.so")
    except OSError as error:
        _say_not_kept(error)
        return None
    return folder / f"{digest}.so"


def _say_not_kept(error: OSError) -> None:
    """Say that kernels work and are built again by whoever needs them next."""
    warnings.warn(
        f"kernels cannot be kept in {cache_directory()}: {error}.\n"
        "Every process builds them again, which takes seconds.\n"
        "Set TORCHSKO_CACHE to a folder that can be written, and that libraries can be loaded from.",
        stacklevel=caller_stack_level(),
    )


def trim_cache(most_bytes: int, keep: Path) -> None:
    """Delete what was used longest ago, until the cache is no larger than this.

    A library that a process has loaded stays with it, and what refers to a deleted file is built anew.
    Temporary files that are older than any build belong to one that was killed, and go.

    Args:
        most_bytes: bound on the sum of its files' sizes.
        keep: a file that stays.
    """
    files = []
    for path in filter(_is_ours, cache_directory().iterdir()):
        try:
            stat = path.stat()
            if path.name.startswith(_TEMPORARY) and stat.st_mtime < time.time() - _SECONDS:
                path.unlink()
                continue
        except OSError:  # another process was faster
            continue
        files.append((stat.st_mtime_ns, stat.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most_bytes:
            return
        if path != keep:
            path.unlink(missing_ok=True)
            total -= size


def _is_ours(path: Path) -> bool:
    """Whether a file is of the cache: the folder may be one that holds others."""
    if path.name.startswith(_TEMPORARY):
        return True
    return path.suffix in _SUFFIXES and _is_digest(path.stem)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set(hexdigits)


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:  # not ours to write
        return


def _write(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
