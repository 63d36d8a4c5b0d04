"""Compile C++ to shared libraries and cache them on disk.

For every key the cache contains a text file ``<key>.lib`` with the SHA-256 of a library, and the
library under that digest. Both are written to a temporary file and renamed, the library first. An
interrupted build therefore leaves nothing that is read, and a library whose bytes do not match its
digest is rebuilt. A build holds a lock on its key; other processes wait for it and load the result.
If the cache exceeds its size limit, the files used longest ago are deleted.
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
from torchsko.fused.build.progress import CompileProgress
from torchsko.fused.build.toolchain import TEXT, Toolchain, digest_of

MAX_BUILD_SECONDS = 600
"""Longest processor time of one compiler run; on a busy host the build may take longer."""

_MAX_CACHE_BYTES = 2**31
"""Size limit of the cache; kernels of a humanoid take a few MiB each."""
_SUFFIXES = (".so", ".lib", ".program", ".ports", ".cubin", ".lock")
_TEMPORARY = ".torchsko-"

_LIMITED = (
    ("/bin/sh", "-c", f'ulimit -t {MAX_BUILD_SECONDS}; exec "$@"', "sh")
    if os.name == "posix"
    else ()
)
"""Start of a command whose processor time is limited, that of its children included."""


def cache_directory() -> Path:
    """``$TORCHSKO_CACHE``, or else ``torchsko`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        CompilerError: the home directory of the user is unknown.
    """
    try:
        if folder := os.environ.get("TORCHSKO_CACHE"):
            return Path(folder).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchsko"
    except RuntimeError as error:
        raise CompilerError(
            "no cache folder for kernels: HOME is not set, and the system does not know the user's home.",
            "Kernels are cached on disk.",
            "Set TORCHSKO_CACHE to a folder of this user.",
        ) from error


def load_or_build_library(
    key: str, units: Callable[[], Sequence[str]], toolchain: Toolchain
) -> ctypes.CDLL:
    """Load the library of a key, or compile it once for all processes that request it.

    Args:
        key: name in the cache, of hexadecimal digits.
        units: makes the C++ texts.
        toolchain: the compiler.

    Raises:
        CompilerError: the compiler failed; the error contains its message.
    """
    library = load_cached_library(key)
    if library is not None:
        return library
    with locked(cache_directory() / f"{key}.lock"):
        return load_cached_library(key) or compile_library(key, units(), toolchain)


def compile_library(key: str, units: Sequence[str], toolchain: Toolchain) -> ctypes.CDLL:
    """Compile translation units in parallel, link them, store the library and load it.

    Args:
        key: name in the cache, of hexadecimal digits; see `load_cached_library`.
        units: the C++ texts.
        toolchain: the compiler.

    Raises:
        CompilerError: the compiler failed; the error contains its message.
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
            progress = CompileProgress(len(jobs), sum(map(len, units)))
            _run_all(toolchain, jobs, progress)
            if len(units) > 1:
                _run_all(toolchain, [["-shared", *map(str, objects), "-o", str(built)]])
            return _loaded(_store(key, built.read_bytes()), built)
    except OSError as error:
        raise _load_error(toolchain, error) from error


def _load_error(toolchain: Toolchain, error: OSError) -> CompilerError:
    if _is_full(str(error)):
        return _disk_full()
    what = f"the library that {toolchain.path} built cannot be loaded: {error}."
    if "undefined symbol" in str(error):
        return CompilerError(
            what,
            "A C compiler such as gcc does not link the C++ standard library.",
            "Set CXX to g++ or clang++, or unset it.",
        )
    return CompilerError(
        what,
        "The disk may be full, or mounted with noexec.",
        "Set TMPDIR and TORCHSKO_CACHE to other folders, set CXX to another compiler, or use the eager "
        "functions.",
    )


def _is_full(message: str) -> bool:
    """True if the message of a compiler or an error reports a full disk."""
    return any(os.strerror(x) in message for x in (errno.ENOSPC, errno.EDQUOT))


def _disk_full() -> CompilerError:
    return CompilerError(
        f"no space to compile a fused kernel in {tempfile.gettempdir()}: the disk or a quota is full.",
        "The compiler writes temporary files there.",
        "Free some space, set TMPDIR to a folder on another disk, or use the eager functions.",
    )


def _loaded(stored: Path | None, built: Path) -> ctypes.CDLL:
    """Load the library from the cache, or from the build folder if the cache does not allow execution."""
    try:
        return ctypes.CDLL(str(stored or built))
    except OSError as error:
        library = ctypes.CDLL(str(built))
        _warn_not_cached(error)
        return library


def _run_all(
    toolchain: Toolchain, jobs: Sequence[Sequence[str]], progress: CompileProgress | None = None
) -> None:
    """Run the compiler in parallel; failed jobs run once more alone, since memory may have been short."""
    for job, _ in _failed(toolchain, jobs, progress):
        for _, message in _failed(toolchain, [job]):
            if _is_full(message):
                raise _disk_full()
            raise CompilerError(
                f"{toolchain.path} failed on a fused kernel:",
                message[-2000:],
                "Set CXX to another compiler, or use the eager functions.",
            )


def _failed(
    toolchain: Toolchain, jobs: Sequence[Sequence[str]], progress: CompileProgress | None = None
) -> list[tuple[Sequence[str], str]]:
    """Run the compiler in parallel; returns the failed jobs and the compiler's messages."""
    running: list[subprocess.Popen[str]] = []
    failed = []
    try:
        for job in jobs:
            command = [*_LIMITED, toolchain.path, *toolchain.flags, *job]
            running.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **TEXT)
            )
        for job, process in zip(jobs, running, strict=True):
            _, message = process.communicate()
            if progress is not None:
                progress.advance()
            if process.returncode != 0:
                default = (
                    f"It ended with status {process.returncode} and no message; "
                    f"its limit is {MAX_BUILD_SECONDS} s of processor time."
                )
                failed.append((job, message or default))
    except OSError as error:
        raise CompilerError(
            f"{toolchain.path} could not build a fused kernel: {error}",
            "Kernels are C++ sources that it compiles.",
            "Check that it runs, or set CXX to another compiler.",
        ) from error
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return failed


def load_cached_library(key: str) -> ctypes.CDLL | None:
    """The library of a key; None if there is none or its bytes have changed."""
    folder = cache_directory()
    try:
        digest = (folder / f"{key}.lib").read_text(encoding="ascii").strip()
        if not _is_digest(digest):
            return None
        library = folder / f"{digest}.so"
        if digest_of(library.read_bytes()) != digest:
            return None
        for path in (folder / f"{key}.lib", library):
            _touch(path)
        return ctypes.CDLL(str(library))
    except (OSError, UnicodeDecodeError):
        return None


def add_key(key: str, new_key: str) -> None:
    """Store a library under a second key; does nothing if the library is not in the cache."""
    folder = cache_directory()
    try:
        _write(folder / f"{new_key}.lib", (folder / f"{key}.lib").read_bytes())
    except OSError:
        return


def read_cached(name: str) -> bytes | None:
    """The content of a file of `write_cached`; None if it does not exist or its bytes have changed."""
    try:
        content = (cache_directory() / name).read_bytes()
    except OSError:
        return None
    _touch(cache_directory() / name)
    digest, payload = content[:64], content[64:]
    return payload if digest == digest_of(payload).encode() else None


def write_cached(name: str, payload: bytes) -> None:
    """Store a file with its digest; does nothing if the cache is not writable."""
    folder = cache_directory()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / name, digest_of(payload).encode() + payload)
        trim_cache(_MAX_CACHE_BYTES, keep=folder / name)
    except OSError:
        return


def _store(key: str, library: bytes) -> Path | None:
    """The path of the library in the cache; None if the cache is not writable."""
    folder, digest = cache_directory(), digest_of(library)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / f"{digest}.so", library)
        _write(folder / f"{key}.lib", digest.encode())
        trim_cache(_MAX_CACHE_BYTES, keep=folder / f"{digest}.so")
    except OSError as error:
        _warn_not_cached(error)
        return None
    return folder / f"{digest}.so"


def _warn_not_cached(error: OSError) -> None:
    warnings.warn(
        f"kernels cannot be cached in {cache_directory()}: {error}.\n"
        "Every process builds them again, which takes seconds.\n"
        "Set TORCHSKO_CACHE to a folder that is writable and allows execution.",
        stacklevel=caller_stack_level(),
    )


def trim_cache(max_bytes: int, keep: Path) -> None:
    """Delete the files used longest ago until the cache is within its size limit.

    A loaded library remains usable after its file is deleted. Temporary files older than the
    longest build were left by a killed process and are deleted.

    Args:
        max_bytes: bound on the total size of the files.
        keep: a file that is not deleted.
    """
    files = []
    for path in filter(_is_cache_file, cache_directory().iterdir()):
        try:
            stat = path.stat()
            is_stale = stat.st_mtime < time.time() - MAX_BUILD_SECONDS
            if path.name.startswith(_TEMPORARY) and is_stale:
                path.unlink()
                continue
        except OSError:  # deleted by another process
            continue
        files.append((stat.st_mtime_ns, stat.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            return
        if path != keep:
            path.unlink(missing_ok=True)
            total -= size


def _is_cache_file(path: Path) -> bool:
    """True for files of the cache; the folder may contain others."""
    if path.name.startswith(_TEMPORARY):
        return True
    return path.suffix in _SUFFIXES and _is_digest(path.stem)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set(hexdigits)


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:  # read-only
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
