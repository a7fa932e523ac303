"""Settings: what stands in the config of DeepSpeed below ``"datastates_ckpt"``."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError

logger = logging.getLogger("slackwater")

SECTION = "datastates_ckpt"


@dataclass(frozen=True)
class Key:
    """One key of the config. ``option`` is the option of ``sw.Checkpointer`` that it becomes, if it becomes one."""

    default: Any
    check: Callable[[Any], str | None]  # what is wrong with a value, in words that follow "it takes"
    option: str | None = None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _seconds(value: Any) -> str | None:
    return None if _is_number(value) and value > 0 else "seconds above 0"


def _whole(least: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if whole else f"a whole number, {least} or more"

    return check


def _one_of(*choices: str) -> Callable[[Any], str | None]:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return lambda value: None if value in choices and isinstance(value, str) else f"one of {listed}"


def _gigabytes(value: Any) -> str | None:
    return None if _is_number(value) and value >= 0 else "gigabytes, 0 or more (0: as large as the state)"


def _size(value: Any) -> str | None:
    text = isinstance(value, str) and bool(value)
    return None if text or _whole(1)(value) is None else 'a size such as "8MiB"'


# docs/integrations/deepspeed.md has a table of these; a test compares the two.
KEYS: dict[str, Key] = {
    "host_cache_size": Key(0, _gigabytes),
    "parser_threads": Key(None, _whole(1), "copy_threads"),
    "pin_host_cache": Key(True, _flag),
    "write_latest": Key(True, _flag),
    "keep": Key(0, _whole(0)),
    "capture": Key("auto", _one_of("auto", "lazy", "at_once")),
    "allow_pickle": Key(False, _flag, "allow_pickle"),
    "paranoid": Key(False, _flag, "paranoid"),
    "in_flight": Key(8, _whole(1), "in_flight"),
    "commit_timeout": Key(600.0, _seconds),
    "stall_timeout": Key(60.0, _seconds, "stall_timeout"),
    "slab": Key(None, _size, "slab"),
    "queue_depth": Key(None, _whole(1), "queue_depth"),
    "io_backend": Key("auto", _one_of("auto", "uring", "threads"), "io_backend"),
    "direct_io": Key(True, _flag, "direct_io"),
}


class Settings:
    """The keys, checked, with defaults for those that were not given."""

    def __init__(self, deepspeed_config: Any) -> None:
        given = _section_of(deepspeed_config)
        for name in given:
            if name not in KEYS:
                logger.warning('"%s": there is no key "%s"%s; it is ignored', SECTION, name, _nearest(name))
        values: dict[str, Any] = {name: given.get(name, key.default) for name, key in KEYS.items()}
        for name, value in values.items():
            wrong = None if value is None and KEYS[name].default is None else KEYS[name].check(value)
            if wrong is not None:
                raise UsageError(f'"{SECTION}": "{name}" is {value!r}; it takes {wrong}')
        self.write_latest: bool = values["write_latest"]
        self.keep: int = values["keep"]
        self.allow_pickle: bool = values["allow_pickle"]
        self.commit_timeout = float(values["commit_timeout"])
        zero = _get(deepspeed_config, "zero_config") or _get(deepspeed_config, "zero_optimization")
        stage = _get(zero, "stage")
        self.every_rank_writes = isinstance(stage, int) and int(stage) >= 1  # its part of the optimizer's state
        self.at_once_because = _why_at_once(values["capture"], deepspeed_config)
        self.options: dict[str, Any] = {
            key.option: values[name] for name, key in KEYS.items() if key.option and values[name] is not None
        }
        if values["host_cache_size"] > 0:
            self.options["pool"] = round(values["host_cache_size"] * (1 << 30))


def _section_of(deepspeed_config: Any) -> Mapping[str, Any]:
    """The section of a DeepSpeedConfig, or of a plain dict."""
    if isinstance(deepspeed_config, Mapping):
        section = deepspeed_config.get(SECTION)
    else:
        section = getattr(getattr(deepspeed_config, "datastates_config", None), "config", None)
    if section is None or section is True:
        return {}
    if not isinstance(section, Mapping):
        raise UsageError(f'"{SECTION}" is {section!r}; it takes an object such as {{"host_cache_size": 16}}')
    return section


def _nearest(name: Any) -> str:
    close = difflib.get_close_matches(str(name), KEYS, n=1, cutoff=0.5)
    return f' (did you mean "{close[0]}"?)' if close else ""


def _why_at_once(capture: str, deepspeed_config: Any) -> str | None:
    """Why tensors may not be copied later than inside save(); None if they may.

    A hook before the optimizer's step protects the copies. These optimizers change their state elsewhere: in another
    process, in threads beside the next forward pass, or by swapping it out to a disk.
    """
    if capture != "auto":
        return "the config says so" if capture == "at_once" else None
    zero = _get(deepspeed_config, "zero_config") or _get(deepspeed_config, "zero_optimization")
    offload = _get(zero, "offload_optimizer")
    if _get(offload, "super_offload"):
        return "SuperOffload updates the optimizer in another process"
    if _get(zero, "zenflow"):
        return "ZenFlow updates the optimizer beside the next steps"
    if "nvme" in str(_get(offload, "device") or ""):
        return "the optimizer is swapped out to NVMe"
    return None


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
