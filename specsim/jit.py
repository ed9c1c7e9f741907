"""Compilation: one decorator, specialisation by substituted globals, and a disk cache that notices every edit.

numba's own `cache=True` looks only at the file of the outermost function, so an edited callee would give stale results;
and kernels that close over compiled functions never hit it. Here the cache folder itself is named after a digest of
every source file of this package, the versions of Python, numba and numpy, and the CPU, and kernels are specialised by
replacing global names instead of by closures. Owns nothing about controllers or traces.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import binding as llvm
from numba.core import config
from numba.core.dispatcher import Dispatcher

_F = TypeVar("_F", bound=Callable[..., Any])
_PACKAGE = Path(__file__).resolve().parent
_numba_config: Any = config  # its values are set from the environment, which type checkers cannot see
_KEPT_FOLDERS = 8  # digests of older sources kept, so that switching between branches does not recompile


def cache_root() -> Path:
    """Folder of the compiled code: `$SPECSIM_CACHE`, else `$XDG_CACHE_HOME/specsim`, else `~/.cache/specsim`."""
    if own := os.environ.get("SPECSIM_CACHE"):
        return Path(own) / "compiled"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specsim" / "compiled"


@cache
def cache_key() -> str:
    """Digest of everything compiled code depends on: sources of this package, versions, CPU and its features."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    cpu = f"{llvm.get_host_cpu_name()} {sorted(llvm.get_host_cpu_features().items())}"
    for part in (sys.version, numba.__version__, np.__version__, cpu):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


@cache
def _cache_folder() -> str:
    """The folder for this key, made and pruned; empty when it cannot be written (then nothing is cached)."""
    root = cache_root()
    folder = root / cache_key()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        os.utime(folder)
        known = sorted((p for p in root.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True)
    except OSError:
        return ""
    for old in known[_KEPT_FOLDERS:]:
        shutil.rmtree(old, ignore_errors=True)
    return str(folder)


def jit(function: _F, *, disk_cache: bool | None = None) -> _F:
    """Compile a function on first use.

    The machine code is kept on disk under `cache_key()` unless `disk_cache` is False; the default keeps it for
    functions defined in this package only, since the digest covers no other source file.
    """
    if disk_cache is None:
        disk_cache = in_package(function)
    folder = _cache_folder() if disk_cache else ""
    before = _numba_config.CACHE_DIR
    _numba_config.CACHE_DIR = folder
    try:
        # error_model="numpy": a division by zero gives inf instead of an exception branch in every inner loop.
        compiled: Any = numba.njit(function, cache=bool(folder), error_model="numpy")
    finally:
        _numba_config.CACHE_DIR = before
    if folder and is_compiled(compiled):  # NUMBA_DISABLE_JIT leaves plain functions
        _forgive(compiled._cache)
    return compiled


def _forgive(disk: Any) -> None:
    """Make a dispatcher's cache one whose failure costs a compilation and not the run.

    A crash or a full disk leaves files cut short, on which every later run would otherwise fail.
    """
    load, save = disk.load_overload, disk.save_overload

    def load_overload(signature: Any, context: Any) -> Any:
        try:
            return load(signature, context)
        except Exception:  # noqa: BLE001 unpickling a damaged file may raise anything
            with suppress(OSError):
                disk.flush()
            return None

    def save_overload(signature: Any, data: Any) -> None:
        with suppress(OSError):
            save(signature, data)

    disk.load_overload, disk.save_overload = load_overload, save_overload


def in_package(function: Callable[..., Any]) -> bool:
    """Whether the function's source lies in this package, so that the disk cache would notice its edits."""
    return _lies_in_package(python_of(function).__code__.co_filename)


@cache
def _lies_in_package(filename: str) -> bool:
    return Path(filename).resolve().is_relative_to(_PACKAGE)


def python_of(function: Callable[..., Any]) -> types.FunctionType:
    """The plain Python function behind a compiled one (or the function itself)."""
    return getattr(function, "py_func", function)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether calls of the function run compiled code."""
    return isinstance(function, Dispatcher)


def with_globals(function: Callable[..., Any], name: str, replacements: Mapping[str, Any]) -> types.FunctionType:
    """A copy of a Python function called `name` that finds `replacements` in place of its own global names.

    Globals, unlike closure cells, are no part of numba's cache index, so copies of one template stay cacheable; the
    name keeps their cache files apart.
    """
    source = python_of(function)
    copy = types.FunctionType(source.__code__, {**source.__globals__, **replacements}, name, source.__defaults__)
    copy.__qualname__ = name
    copy.__module__ = source.__module__
    return copy


def uncompiled(function: Callable[..., Any]) -> types.FunctionType:
    """The function as plain Python all the way down: compiled functions among its globals are replaced as well."""
    source = python_of(function)
    used = {name: source.__globals__[name] for name in source.__code__.co_names if name in source.__globals__}
    plain = {name: uncompiled(value) for name, value in used.items() if is_compiled(value)}
    return with_globals(source, source.__name__, plain)
