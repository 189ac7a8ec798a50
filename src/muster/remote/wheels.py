"""Make wheels of what runs here: muster from its source tree or its installed files, and its dependencies.

Called by `remote.install`, which puts them on a host. Needs no build tool and no package index: a wheel is a
zip of files that are here already. The same files always make the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import muster
from muster.errors import RemoteError
from muster.host.atomic_write import replacing

DISTRIBUTION = "muster-ml"
_LEFT_OUT = (
    "RECORD",
    "INSTALLER",
    "REQUESTED",
    "direct_url.json",
    "RECORD.jws",
    "RECORD.p7s",
    "uv_cache.json",
)
_NO_SOURCE = ("__pycache__",)
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say
_PURE = "Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
Files = dict[str, "Path | bytes"]  # by the name inside the wheel
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True)
class Wheel:
    """A file that `pip install` takes."""

    path: Path
    name: str
    version: str


def running_digest() -> str:
    """Return what tells this muster from another one of the same version."""
    return package_digest(os.path.dirname(muster.__file__))


def package_digest(folder: str) -> str:
    """Return a digest of the files below; its source runs on hosts as well, where there is only Python."""
    import hashlib
    import os

    total = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(name for name in names if not name.endswith(".pyc")):
            path = os.path.join(place, name)
            total.update(os.path.relpath(path, folder).encode() + b"/")
            with open(path, "rb") as stream:
                total.update(hashlib.sha256(stream.read()).digest())
    return total.hexdigest()[:16]


def source_tree() -> Path | None:
    """Return the directory with the sources that run now; None when muster was installed from a wheel."""
    package = Path(muster.__file__).parent
    root = package.parent.parent
    is_ours = package.parent.name == "src" and (root / "pyproject.toml").is_file()
    return root if is_ours and f'name = "{DISTRIBUTION}"' in (root / "pyproject.toml").read_text() else None


def muster_wheel(target: Path) -> Wheel:
    """Write the wheel of the muster that runs now into the directory `target`."""
    found = _distribution(DISTRIBUTION)
    if source_tree() is None:
        return repacked(DISTRIBUTION, target)
    package = Path(muster.__file__).parent
    files: Files = {f"muster/{name}": path for name, path in _files_below(package)}
    about = _about(found)
    stem = f"{_escaped(DISTRIBUTION)}-{muster.__version__}"
    files.update({f"{stem}.dist-info/{name}": path for name, path in about.items()})
    # An editable install keeps the version that the tree had when it was made.
    version = b"Version: " + muster.__version__.encode()
    text = about["METADATA"].read_bytes()
    files[f"{stem}.dist-info/METADATA"] = re.sub(rb"(?m)^Version: .*$", version, text, count=1)
    files[f"{stem}.dist-info/WHEEL"] = _PURE.encode()  # an editable install has its own tag
    return _written(target, f"{stem}-py3-none-any", files)


def repacked(name: str, target: Path) -> Wheel:
    """Write a wheel of an installed distribution, of the files in its RECORD; one made before is kept.

    Raises RemoteError when the installed files are not all there, or were not installed from a wheel.
    """
    found = _distribution(name)
    version, about = found.version, _about(found)
    stem = f"{_escaped(found.metadata['Name'])}-{version}"
    tags = _tags(about["WHEEL"].read_text()) if "WHEEL" in about else ""
    if not tags:
        raise RemoteError(
            f"{name} {version} was not installed from a wheel here, so it cannot be sent to a host: install "
            f"it with pip, or install it on the host"
        )
    known = target / f"{stem}-{tags}.whl"
    if known.is_file() and name != DISTRIBUTION:
        return Wheel(known, _escaped(name), version)
    files: Files = {f"{stem}.dist-info/{inner}": path for inner, path in about.items()}
    for inner, path in _installed(found, f"{stem}.data"):
        files[inner] = _script(path) if "/scripts/" in inner else path
    return _written(target, f"{stem}-{tags}", files)


def closure(extras: Iterable[str] = (), *, name: str = DISTRIBUTION) -> dict[str, str]:
    """Return what a distribution needs, with the versions that are installed here, itself left out.

    What a marker asks for on this platform is installed here, and what is not installed was not asked for:
    the host has the same platform and Python, so no marker has to be evaluated.
    """
    found: dict[str, str] = {}
    waiting = [(name, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for needed, wanted in _requirements(*one):
            try:
                version = metadata.version(needed)
            except metadata.PackageNotFoundError:
                continue
            if _escaped(needed) != _escaped(name):
                found[_escaped(needed)] = version
            waiting.append((needed, wanted))
    return dict(sorted(found.items()))


def _requirements(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    asked = set(map(_escaped, extras))  # the same extra is written with `-`, `_` or `.`
    for text in _distribution(name).requires or ():
        wanted, _, marker = text.partition(";")
        named = set(map(_escaped, _EXTRA.findall(marker)))
        match = _NAME.match(wanted)
        if match is None or (named and not named & asked):
            continue
        inner = (part.strip() for part in (match[2] or "").split(","))
        yield match[1], frozenset(part for part in inner if part)


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise RemoteError(
            f"{name} runs here without being installed, so it cannot be sent to a host: install it with pip"
        ) from None


def _about(found: metadata.Distribution) -> dict[str, Path]:
    """Return the files of the dist-info directory that a wheel has."""
    folder = _info_directory(found)
    return {name: path for name, path in _files_below(folder) if name not in _LEFT_OUT}


def _info_directory(found: metadata.Distribution) -> Path:
    for file in found.files or ():
        if len(file.parts) == 2 and file.name == "METADATA" and file.parts[0].endswith(".dist-info"):
            return Path(str(found.locate_file(file))).parent
    raise RemoteError(
        f"{found.metadata['Name']} has no list of its files here (a package of the system?), so it cannot be "
        f"sent to a host: install it with pip, or install it on the host"
    )


def _installed(found: metadata.Distribution, data_folder: str) -> Iterator[tuple[str, Path]]:
    """Yield the name inside the wheel and the file, for everything but dist-info and compiled modules."""
    made = {entry.name for entry in found.entry_points if entry.group in ("console_scripts", "gui_scripts")}
    for file in found.files or ():
        path = Path(str(found.locate_file(file)))
        parts = file.parts
        if file.suffix == ".pyc" or parts[0].endswith(".dist-info"):
            continue
        if parts[0] == ".." or file.is_absolute():
            inner = _outside(parts)
            if inner is None or (inner[0] == "scripts" and inner[-1] in made):
                continue  # pip makes the scripts of entry points itself
            name = "/".join((data_folder, *inner))
        else:
            if parts[0].startswith(("__editable__", "_editable_impl")):
                raise RemoteError(
                    f"{found.metadata['Name']} is installed here as an editable source tree, so it cannot be "
                    f"sent to a host: install it with pip as a wheel"
                )
            name = file.as_posix()
        if not path.is_file():
            raise RemoteError(f"{path} is gone: reinstall {found.metadata['Name']} here, then run this again")
        yield name, path


def _outside(parts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return where a wheel keeps a file that is installed beside site-packages; None: it is left out."""
    rest = tuple(part for part in parts if part != "..")
    if rest and rest[0] == "bin":
        return ("scripts", *rest[1:])
    if rest and rest[0] in ("share", "etc", "lib", "include"):
        return ("data", *rest)
    return None


def _script(path: Path) -> bytes:
    """Return a script with the first line that pip replaces by the Python of its new place."""
    data = path.read_bytes()
    first, newline, rest = data.partition(b"\n")
    return b"#!python" + newline + rest if first.startswith(b"#!") and b"python" in first else data


def _tags(text: str) -> str:
    """Return the end of the wheel's name, tags of one kind written together: `py2.py3-none-any`."""
    lines = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Tag:")]
    columns = zip(*(line.split("-") for line in lines), strict=True)
    return "-".join(".".join(dict.fromkeys(column)) for column in columns)


def _files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _NO_SOURCE)
        for name in sorted(names):
            if not name.endswith(".pyc"):
                path = Path(place, name)
                yield path.relative_to(folder).as_posix(), path


def _written(target: Path, stem: str, files: Files) -> Wheel:
    """Write the zip, the list of its files last, as tools expect; one file at a time is in memory."""
    name, version = stem.split("-")[:2]
    record = f"{name}-{version}.dist-info/RECORD"
    target.mkdir(parents=True, exist_ok=True)
    path, lines = target / f"{stem}.whl", []
    with replacing(path) as draft, zipfile.ZipFile(draft, "w") as archive:
        for inner, content in sorted(files.items()):
            data = content if isinstance(content, bytes) else content.read_bytes()
            is_program = "/scripts/" in inner if isinstance(content, bytes) else os.access(content, os.X_OK)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{inner},sha256={digest},{len(data)}\n")
            _add(archive, inner, data, is_program=is_program)
        _add(archive, record, "".join([*lines, f"{record},,\n"]).encode())
    return Wheel(path, name, version)


def _add(archive: zipfile.ZipFile, inner: str, data: bytes, *, is_program: bool = False) -> None:
    """Keep the permission to run: Ray's programs lie among its modules."""
    entry = zipfile.ZipInfo(inner, _FIRST_DAY)
    entry.external_attr = (stat.S_IFREG | (0o755 if is_program else 0o644)) << 16
    archive.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=1)


def _escaped(name: str) -> str:
    """Return a distribution's name as file names have it."""
    return re.sub(r"[-_.]+", "_", name).lower()
