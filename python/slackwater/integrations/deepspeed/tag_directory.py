"""TagDirectory: what a tag of ours looks like on disk, and the order in which it is written.

    <save_dir>/latest                                   the tag to load; moved when a tag is complete
    <save_dir>/<tag>/mp_rank_00_model_states.pt         a stub (stub.py), at the path that DeepSpeed knows
    <save_dir>/<tag>/slackwater/manifest.json           which files make the tag; written last
    <save_dir>/<tag>/slackwater/<file>/                 a Slackwater directory with one version: the data of that file

Each rank places its own files. Rank 0 writes the manifest once all ranks have said that theirs are durable, and then
moves ``latest``. A file loads only if the manifest lists it. So a tag that was not finished does not load, and a tag
that is saved again stays as it was until the new one is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...errors import DamagedError, NotFoundError, StorageError, UnsupportedError
from ..files import sync_directory

logger = logging.getLogger("slackwater")

FOLDER = "slackwater"
MANIFEST = "manifest.json"
LATEST = "latest"
FORMAT = 1
_MAX_MANIFEST_BYTES = 256 << 20
_ATTEMPT = os.path.join(".slackwater", "attempt-0001.json")


class Placed(NamedTuple):
    """A file of DeepSpeed's that is in its place. It counts once the manifest of its tag lists it."""

    file: str  # its name in the tag
    folder: str  # its Slackwater directory, below slackwater/
    step: int  # of the one version there
    id: str  # also in the version's metadata
    rank: int
    size_bytes: int


class Manifest(NamedTuple):
    tag: str
    order: int  # later tags of a directory have larger numbers
    world: int
    files: dict[str, Placed]


class TagDirectory:
    """Thread rule: each rank calls ``place``, ``sync`` and ``discard`` on one thread; ``commit`` is for rank 0."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = os.path.join(path, FOLDER)
        self.save_dir, self.tag = os.path.split(path)

    # Writing

    def place(self, version: str, control: str, placed: Placed) -> Placed:
        """Moves a committed version in here, with the file that says who wrote it. Nothing is synced yet."""
        os.makedirs(self.folder, exist_ok=True)
        placed = placed._replace(folder=self._free_name(placed.file))
        target = os.path.join(self.folder, placed.folder)
        os.makedirs(os.path.join(target, ".slackwater"))
        with open(os.path.join(control, os.path.basename(_ATTEMPT)), "rb") as source:
            _write_synced(os.path.join(target, _ATTEMPT), source.read())
        os.rename(version, os.path.join(target, os.path.basename(version)))
        return placed

    def _free_name(self, file: str) -> str:
        """The tag may have been saved before, or a run may have been killed here."""
        taken = set(os.listdir(self.folder))
        numbered = (f"{file}~{number}" for number in range(2, 1_000_000))
        return file if file not in taken else next(name for name in numbered if name not in taken)

    def sync(self, files: list[Placed]) -> None:
        """Afterwards the files of this rank survive a power cut."""
        for placed in files:
            target = os.path.join(self.folder, placed.folder)
            sync_directory(os.path.join(target, ".slackwater"))
            sync_directory(target)
            _sync_file(os.path.join(self.path, placed.file))
        for directory in (self.folder, self.path, self.save_dir):
            sync_directory(directory)

    def commit(self, files: list[Placed], world: int, order: int) -> None:
        """From here on the tag loads. What an earlier save of it left behind goes."""
        text = _seal(
            {
                "format": FORMAT,
                "tag": self.tag,
                "order": order,
                "world": world,
                "files": {placed.file: placed._asdict() for placed in sorted(files)},
            }
        )
        os.makedirs(self.folder, exist_ok=True)  # rank 0 may have no file
        replace_file(os.path.join(self.folder, MANIFEST), text)
        self._remove_all_but({placed.folder for placed in files})

    def _remove_all_but(self, folders: set[str]) -> None:
        for name in os.listdir(self.folder):
            if name != MANIFEST and name not in folders:
                _remove(os.path.join(self.folder, name))

    def discard(self, files: list[Placed]) -> None:
        """Removes files of a tag that was given up. Stubs stay: unless a manifest lists them, they load nothing."""
        for placed in files:
            _remove(os.path.join(self.folder, placed.folder))

    def remove(self) -> None:
        """Retention: the manifest first, so that what is half removed does not load. Other people's files stay."""
        manifest = self.manifest()
        if manifest is None:
            return
        os.unlink(os.path.join(self.folder, MANIFEST))
        sync_directory(self.folder)
        for file in manifest.files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, file))
        _remove(self.folder)
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(self.path)
        logger.info("removed checkpoint '%s' of %s (keep)", self.tag, self.save_dir)

    # Reading

    @property
    def is_ours(self) -> bool:
        return os.path.isdir(self.folder)

    def manifest(self) -> Manifest | None:
        """None: there is none, so the tag is not complete."""
        path = os.path.join(self.folder, MANIFEST)
        try:
            with open(path, "rb") as file:
                text = file.read(_MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"'{path}' cannot be read: {error}", path=path, errno=error.errno or 0) from error
        return _parse(text, path)

    def find(self, file: str) -> Placed:
        manifest = self.manifest()
        if manifest is None:
            raise NotFoundError(
                f"checkpoint '{self.tag}' in '{self.save_dir}' is not complete: the run ended before all ranks had "
                "written it; load an earlier tag (the file 'latest' names the newest complete one)",
                path=self.path,
            )
        placed = manifest.files.get(file)
        if placed is None:
            raise NotFoundError(
                f"checkpoint '{self.tag}' in '{self.save_dir}' has no file '{file}'; it has: "
                f"{', '.join(sorted(manifest.files)[:20])}",
                path=self.path,
            )
        return placed

    def version_folder(self, placed: Placed) -> str:
        return os.path.join(self.folder, placed.folder)


def tags_of(save_dir: str) -> Iterator[tuple[TagDirectory, Manifest]]:
    """The complete tags in a directory. Those whose manifest cannot be read are left out, with a warning."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(save_dir):
            directory = TagDirectory(os.path.join(save_dir, name))
            try:
                manifest = directory.manifest()
            except (DamagedError, StorageError, UnsupportedError) as error:
                logger.warning("%s", error)
                continue
            if manifest is not None:
                yield directory, manifest


def read_latest(save_dir: str) -> str | None:
    try:
        with open(os.path.join(save_dir, LATEST)) as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


def write_latest(save_dir: str, tag: str) -> None:
    replace_file(os.path.join(save_dir, LATEST), tag.encode())


# The manifest: JSON whose last line is a digest of the lines before it.


def _seal(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
    return body + hashlib.blake2b(body, digest_size=16).hexdigest().encode() + b"\n"


def _parse(text: bytes, path: str) -> Manifest:
    def damaged(why: str) -> DamagedError:
        return DamagedError(f"the manifest '{path}' is damaged: {why}", path=path)

    if len(text) > _MAX_MANIFEST_BYTES:
        raise damaged("it is too large")
    body, _, digest = text.removesuffix(b"\n").rpartition(b"\n")
    if hashlib.blake2b(body + b"\n", digest_size=16).hexdigest().encode() != digest:
        raise damaged("its digest does not match")
    try:
        content = json.loads(body)
        if content["format"] != FORMAT:
            raise UnsupportedError(f"'{path}' has format {content['format']!r}, which this release does not know")
        files = {name: Placed(**fields) for name, fields in content["files"].items()}
        manifest = Manifest(str(content["tag"]), int(content["order"]), int(content["world"]), files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"{type(error).__name__}: {error}") from error
    for name, placed in files.items():
        if name != placed.file or not _is_plain_name(name) or not _is_plain_name(placed.folder):
            raise damaged(f"it names a file '{name}' in '{placed.folder}'")
        if not isinstance(placed.step, int) or not isinstance(placed.id, str):
            raise damaged(f"it does not say which version '{name}' is")
    return manifest


def _is_plain_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and not name.startswith(".") and "/" not in name and "\0" not in name


# Files


def replace_file(path: str, content: bytes) -> None:
    """Readers see the old content or the new, also after a power cut."""
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        _write_synced(temporary, content)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path))


def _write_synced(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_file(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("'%s' could not be removed: %s", path, error)
