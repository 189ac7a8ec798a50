"""Read and write the files of an experiment, at a local path or any fsspec URL. Blocks; no retries.

Local files are written in place by their makers; `uploads.Uploader` copies them to a remote place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from muster.base.clock import Clock
from muster.errors import ConfigError, StoreError
from muster.host.regular_file import read_regular
from muster.session.checkpoint import as_fsspec

T = TypeVar("T")
MARKER = ".validate_storage_marker"
PARAMETERS = "parameters"  # the directory of large parameters, in that of an experiment


class Storage:
    """One place, compared by its address. Names below it use `/` and never leave it."""

    def __init__(self, location: str | Path, filesystem: Any = None) -> None:  # noqa: ANN401 - untyped fsspec
        """`filesystem` is a file system of the user (fsspec or pyarrow), `location` a path in it."""
        text = os.fspath(location)
        parts = urlsplit(text) if "://" in text else None
        self._given = as_fsspec(filesystem)
        if filesystem is None and (parts is None or parts.scheme in ("file", "local")):
            path = unquote(parts.path) if parts is not None else text
            self.uri = os.path.abspath(os.path.expanduser(path))
            self.is_local = True
        else:
            self.uri = text.rstrip("/")
            self.is_local = False

    @property
    def path(self) -> Path:
        """The path of a local place."""
        if not self.is_local:
            raise StoreError(f"{self.uri}: is not on this machine")
        return Path(self.uri)

    def join(self, *parts: str) -> str:
        """Return the path or URL of something below."""
        cleaned = [part.strip("/") for part in parts if part]
        for part in cleaned:
            if ".." in part.split("/"):
                raise StoreError(f"{part!r}: leads outside of the storage")
        return "/".join([self.uri, *cleaned])

    def below(self, *parts: str) -> Storage:
        """Return a directory inside as a separate place."""
        inner = Storage.__new__(Storage)
        inner.uri, inner.is_local, inner._given = self.join(*parts), self.is_local, self._given
        return inner

    def exists(self, name: str = "") -> bool:
        with self._explained("look at", name):
            if self.is_local:
                return os.path.exists(self.join(name))
            filesystem, path = self._at(name)
            filesystem.invalidate_cache(path)  # others write there as well
            return bool(filesystem.exists(path))

    def size(self, name: str) -> int | None:
        """Bytes of one file; None when there is none."""
        with self._explained("look at", name):
            try:
                if self.is_local:
                    return os.stat(self.join(name)).st_size
                filesystem, path = self._at(name)
                filesystem.invalidate_cache(path)
                return int(filesystem.info(path)["size"] or 0)
            except FileNotFoundError:
                return None

    def listing(self, name: str = "") -> tuple[str, ...]:
        """Return the names directly inside a directory, sorted; empty when it does not exist."""
        with self._explained("list", name):
            if self.is_local:
                place = self.join(name)
                return tuple(sorted(os.listdir(place))) if os.path.isdir(place) else ()
            filesystem, path = self._at(name)
            filesystem.invalidate_cache(path)
            if not filesystem.isdir(path):
                return ()
            entries = filesystem.ls(path, detail=False)
            return tuple(sorted(str(entry).rstrip("/").rpartition("/")[2] for entry in entries))

    def sizes(self, name: str = "") -> dict[str, int]:
        """Return every file below a directory with its size, by its name relative to the directory."""
        with self._explained("list", name):
            if self.is_local:
                return local_sizes(self.join(name))
            filesystem, path = self._at(name)
            filesystem.invalidate_cache(path)
            if not filesystem.isdir(path):
                return {}
            found = filesystem.find(path, detail=True)
            skip = len(path.strip("/")) + 1  # some list names without the leading slash
            return {file.lstrip("/")[skip:]: int(found[file]["size"] or 0) for file in sorted(found)}

    def read(self, name: str) -> bytes:
        """Return the content of a file; StoreError when there is no such file."""
        with self._explained("read", name):
            if self.is_local:
                return read_regular(self.join(name))
            filesystem, path = self._at(name)
            return bytes(filesystem.cat_file(path))

    def upload_file(self, source: str | Path, name: str) -> None:
        """Copy one local file to `name`, replacing it."""
        with self._explained("write", name):
            if self.is_local:
                target = Path(self.join(name))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
                return
            filesystem, path = self._at(name)
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            filesystem.put_file(os.fspath(source), path)

    def upload_dir(self, source: str | Path, name: str) -> None:
        """Copy a local directory; other files in the target stay."""
        for relative in local_sizes(source):
            self.upload_file(Path(source, relative), f"{name}/{relative}" if name else relative)

    def download_file(self, name: str, target: str | Path) -> None:
        """Copy one file of a remote place to `target`, whose directory exists."""
        with self._explained("fetch", name):
            filesystem, path = self._at(name)
            filesystem.get_file(path, os.fspath(target))

    def download_dir(self, name: str, target: str | Path, skipped: str = "") -> None:
        """Copy a directory here, except one file. On failure, a new target is removed."""
        place = Path(target)
        was_there = place.exists()
        try:
            with self._explained("fetch", name):
                self._download(name, place, skipped)
        except BaseException:
            if not was_there:
                shutil.rmtree(place, ignore_errors=True)
            raise

    def delete_dir(self, name: str) -> None:
        """Delete a directory; a missing one is not an error."""
        if not name:
            raise StoreError(f"{self.uri}: refusing to delete all of it")
        with self._explained("delete", name):
            if self.is_local:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self.join(name))
                return
            filesystem, path = self._at(name)
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm(path, recursive=True)

    def delete_file(self, name: str) -> None:
        """Delete one file; a missing one is not an error."""
        with self._explained("delete", name), contextlib.suppress(FileNotFoundError):
            if self.is_local:
                os.unlink(self.join(name))
                return
            filesystem, path = self._at(name)
            filesystem.rm_file(path)

    def validate(self, content: bytes = b"") -> None:
        """Write Ray's marker file, to find out at the start whether this place can be written."""
        with self._explained("write", MARKER):
            if self.is_local:
                self.path.mkdir(parents=True, exist_ok=True)
                (self.path / MARKER).write_bytes(content)
                return
            filesystem, path = self._at(MARKER)
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            is_known = bool(content) and self.exists(MARKER) and self.read(MARKER) == content
            filesystem.pipe_file(path + ".probe" * is_known, content)  # a kill could leave it empty
        if is_known:
            self.delete_file(f"{MARKER}.probe")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and (self.uri, self._given) == (other.uri, other._given)

    def __hash__(self) -> int:
        return hash(self.uri)

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def _download(self, name: str, place: Path, skipped: str) -> None:
        if self.is_local:
            shutil.copytree(self.join(name), place, dirs_exist_ok=True)
            return
        found = self.sizes(name)
        if not found and not self.exists(name):
            raise FileNotFoundError(self.join(name))
        place.mkdir(parents=True, exist_ok=True)
        for relative in found:
            if relative == skipped:
                continue
            target = place / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            self.download_file(f"{name}/{relative}" if name else relative, target)

    def opened(self) -> tuple[Any, str]:
        """Return the fsspec file system of a remote place and the path in it."""
        return self._at("")

    def _at(self, name: str) -> tuple[Any, str]:
        """Return the fsspec file system and the path in it."""
        address = self.join(name) if name else self.uri
        if self._given is not None:
            return self._given, address
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # it has no types

            filesystem, path = url_to_fs(address)
        except (ImportError, ValueError) as error:
            scheme = address.partition("://")[0]
            raise ConfigError(
                f"{address}: {error}",
                path="storage_path",
                fix=f"install the package that brings fsspec the protocol {scheme!r}",
            ) from error
        return filesystem, str(path)

    @contextlib.contextmanager
    def _explained(self, verb: str, name: str) -> Iterator[None]:
        """Turn every exception of a file system into a StoreError that names the place."""
        try:
            yield
        except (StoreError, ConfigError):
            raise
        except Exception as error:
            place = self.join(name) if name else self.uri
            raise StoreError(f"cannot {verb} {place}: {type(error).__name__}: {error}") from error


def with_retries(act: Callable[[], T], clock: Clock, *, tries: int = 4, again_s: float = 1.0) -> T:
    """Return what `act` returns; after a StoreError, try again later, and raise the last one."""
    for failures in range(tries - 1):
        try:
            return act()
        except StoreError:
            clock.sleep(again_s * 2.0**failures)
    return act()


def local_sizes(directory: str | Path) -> dict[str, int]:
    """Return every file below a local directory with its size, sorted, without those that vanish."""
    found: dict[str, int] = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            file = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                found[os.path.relpath(file, directory).replace(os.sep, "/")] = os.stat(file).st_size
    return dict(sorted(found.items()))
