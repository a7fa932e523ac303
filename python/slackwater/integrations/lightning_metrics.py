"""What Lightning keeps of ``self.log(...)``.

These are the sums of this epoch, and the last values, which callbacks and schedulers monitor. Its own checkpoints leave
them out, so that a mean over an epoch would begin anew in the middle of it.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

_SUMS = ("value", "cumulated_batch_size")


def take(trainer: Any) -> dict[str, Any]:
    connector = trainer._logger_connector
    results = trainer.fit_loop.epoch_loop._results
    kept = {key: one for key, one in results.items() if one.is_tensor and one.meta.on_epoch and not one.has_reset}
    return {
        "sums": {key: {name: getattr(one, name) for name in _SUMS if hasattr(one, name)} for key, one in kept.items()},
        "callback": dict(connector._callback_metrics),
        "logged": dict(connector._logged_metrics),
    }


def put_back(trainer: Any, taken: dict[str, Any] | None) -> None:
    """Before the first batch."""
    if not taken:
        return
    connector, device = trainer._logger_connector, trainer.strategy.root_device
    connector._callback_metrics.update(_on(device, taken["callback"]))
    connector._logged_metrics.update(_on(device, taken["logged"]))
    if taken["sums"]:
        trainer.fit_loop.epoch_loop._results = _Continued({key: _on(device, one) for key, one in taken["sums"].items()})


def _on(device: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {key: value.to(device) if hasattr(value, "to") else value for key, value in values.items()}


class _Continued(_ResultCollection):
    """A metric that is logged for the first time since the restart begins with its saved sums."""

    def __init__(self, sums: dict[str, dict[str, Any]]) -> None:
        super().__init__(training=True)
        self._sums = sums

    def __setitem__(self, key: str, metric: Any) -> None:
        for name, value in self._sums.pop(key, {}).items():
            setattr(metric, name, value)
        super().__setitem__(key, metric)
