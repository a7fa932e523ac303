"""Starts DLIO 2.0.0 for a PyTorch workload where TensorFlow, DALI and torchvision are not installed.

DLIO imports them even if a workload uses none of them. They get placeholders here, which fail when they are called.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

ABSENT = ("tensorflow", "tensorflow_io", "nvidia", "torchvision", "torchaudio", "matplotlib")


class Placeholder(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": _refuse, "__module__": self.__name__})
        setattr(self, name, made)
        return made


def _refuse(self: Any, *_: Any, **__: Any) -> None:
    raise RuntimeError(f"{type(self).__module__} is not installed; this workload was not to need it")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Placeholder:
        return Placeholder(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []  # type: ignore[attr-defined]


sys.meta_path.append(Finder())  # last: what is installed comes first

from dlio_benchmark.main import main  # noqa: E402

if __name__ == "__main__":
    main()
