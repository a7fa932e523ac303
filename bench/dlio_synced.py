"""DLIO's own mechanism for PyTorch, with a sync of each file: what it would take to make its checkpoints durable."""

import os
from typing import Any

import torch
from dlio_benchmark.checkpointing.pytorch_checkpointing import PyTorchCheckpointing


class SyncedCheckpointing(PyTorchCheckpointing):
    _instance = None

    @staticmethod
    def get_instance() -> "SyncedCheckpointing":
        if SyncedCheckpointing._instance is None:
            SyncedCheckpointing._instance = SyncedCheckpointing()
        return SyncedCheckpointing._instance

    def save_state(self, suffix: str, state: Any) -> None:
        with open(self.get_name(suffix), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
