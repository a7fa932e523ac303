"""Stub: the small file at the path that DeepSpeed knows. The data are in the tag's folder ``slackwater``.

DeepSpeed's own tools (``zero_to_fp32.py``, ``ds_to_universal.py``) open these paths with ``torch.load``. So a stub is
an archive as ``torch.save`` writes it. Its pickle says one thing: call ``read_stub``. Where Slackwater is installed,
the tools then work as they are. Our own ``load`` never unpickles a stub: it reads ``stub.json``, which says the same.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import zipfile
from typing import Any

from ...errors import DamagedError

_NAME = "stub.json"
_MAX_BYTES = 1 << 20
_KEYS = {"tag_directory", "file", "id"}


class _Call:
    """Pickled as a call of ``read_stub``."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return read_stub, (self._text,)


def stub_bytes(tag_directory: str, file: str, version_id: str) -> bytes:
    text = json.dumps({"tag_directory": tag_directory, "file": file, "id": version_id})
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(_Call(text), protocol=2))
        archive.writestr(f"archive/{_NAME}", text)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
    return content.getvalue()


def parse_stub(path: str) -> dict[str, str] | None:
    """What a stub says. None: the file is no stub of ours."""
    if os.path.getsize(path) > _MAX_BYTES:
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/{_NAME}")]
            if len(names) != 1 or archive.getinfo(names[0]).file_size > _MAX_BYTES:
                return None
            return _parse(archive.read(names[0]).decode(), path)
    except (zipfile.BadZipFile, UnicodeDecodeError):
        return None


def _parse(text: str, path: str) -> dict[str, str]:
    try:
        content = json.loads(text)
        if set(content) == _KEYS and all(isinstance(value, str) for value in content.values()):
            return dict(content)
    except (ValueError, TypeError, RecursionError):
        pass
    raise DamagedError(f"'{path}' is a stub of Slackwater, but what it says is damaged", path=path)


def read_stub(text: str) -> Any:
    """Called by the pickle of a stub, inside ``torch.load``: the state dict, read and verified.

    The stub may have been moved together with its tag since it was written. So the path that ``torch.load`` was given
    counts first. A stub that was copied alone (as ``ds_to_universal.py`` does) is read from where it was written.
    """
    from .loading import load_file, load_stub

    content = _parse(text, "the stub that torch.load has opened")
    given, trusted = _given_to_torch_load()
    if given is not None and os.path.isdir(os.path.join(os.path.dirname(given), "slackwater")):
        return load_file(given, allow_pickle=trusted)
    return load_stub(content, allow_pickle=trusted)


def _given_to_torch_load() -> tuple[str | None, bool]:
    """The path, and whether pickles are allowed: the caller says so with ``weights_only=False``."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "load" and frame.f_globals.get("__name__") == "torch.serialization":
            given = frame.f_locals.get("f")
            if not isinstance(given, (str, os.PathLike)):
                given = getattr(given, "name", None)  # an open file
            path = os.path.abspath(os.fspath(given)) if isinstance(given, (str, os.PathLike)) else None
            return path, frame.f_locals.get("weights_only") is False
        frame = frame.f_back
    return None, False
