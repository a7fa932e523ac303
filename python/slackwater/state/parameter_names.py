"""Names for the parameters of optimizers, which count theirs: the names that the same state gives them."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any

from . import codec, parameters
from .tables import Table

if TYPE_CHECKING:
    from .tree import Flattener


class ParameterNamer:
    """Goes through the optimizers of a state that has been walked, once, and completes their nodes."""

    def __init__(self, flat: Flattener) -> None:
        self._flat = flat
        self._loose: tuple[list[str], list[Any]] | None = None  # tensors that stand by themselves
        self._addresses: dict[str, int] | None = None  # of tensors that may name parameters

    def _is_stored(self, tensor: Any) -> bool:
        """Whether the checkpoint has it under its own name, with its own shape."""
        return type(tensor) in self._flat.plain_tensors or (
            self._flat.torch.is_dtensor(tensor) and not self._flat.torch.is_wrapper(tensor._local_tensor)
        )

    def name_all(self) -> None:
        """Optimizers get the names of their parameters, which the same state holds, before or after them: in modules,
        or as other tensors in the same memory."""
        found = [
            (name, *self._flat.torch.module_parameters(tensors)) if keys is None else (name, keys, tensors)
            for name, keys, tensors in self._flat.module_tensors
        ]
        modules = parameters.module_identity(found)
        names_by_id: dict[int, tuple[str, ...]] | None = None
        memories: dict[Any, tuple[str, ...]] | None = None
        stored: set[int] = set()
        for optimizer, name, node in self._flat.optimizer_nodes:
            identity = parameters.identity(optimizer, modules)
            key = f"{name}\0parameters"  # no tensor has such a name
            table = self._flat.known.get(key) if self._flat.known is not None else None
            if (
                table is None
                or table.keys != identity
                or table.shapes != parameters.shapes_at(optimizer, table.places)
                or (table.by_memory and not self._names_hold(optimizer, table, found))
            ):
                if names_by_id is None:
                    names_by_id = parameters.names_by_id(found)
                    plain = [tensors for _, keys, tensors in self._flat.module_tensors if keys is not None]
                    stored = {id(tensor) for tensors in plain for tensor in tensors if self._is_stored(tensor)}
                places = parameters.without_tensor(optimizer, stored)
                shapes = parameters.shapes_at(optimizer, places)
                unnamed = parameters.without_name(optimizer, names_by_id)
                known: parameters.Names = names_by_id
                if unnamed:
                    if memories is None:
                        memories = self._memories(found)
                    key_of = self._flat.torch.memory_key
                    known = {**known, **parameters.names_by_memory(optimizer, known, memories, key_of)}
                described = parameters.describe(optimizer, known, places)
                node["parameters"] = described
                self._flat.tables[key] = Table(
                    identity,
                    [],
                    codec.Rendered(described),
                    places,
                    shapes,
                    unnamed,
                    [described["names"][group][index] for group, index in unnamed],
                )
            else:
                self._flat.tables[key] = table
                node["parameters"] = table.node

    def _loose_tensors(self) -> tuple[list[str], list[Any]]:
        """Names and tensors that stand in the state by themselves, as in a state_dict()."""
        if self._loose is None:
            inside = bytearray(len(self._flat.torch_names))
            for part in self._flat.inside_objects:
                inside[part] = b"\1" * (part.stop - part.start)
            outside = list(map(operator.not_, inside))
            self._loose = (
                list(itertools.compress(self._flat.torch_names, outside)),
                list(itertools.compress(self._flat.torch_tensors, outside)),
            )
        return self._loose

    def _memories(self, found: list[parameters.NamedTensors]) -> dict[Any, tuple[str, ...]]:
        loose = zip(*self._loose_tensors(), strict=True)
        named = [*parameters.named_tensors(found), *loose, *self._flat.loose_dtensors]
        return parameters.by_memory(named, self._flat.torch.memory_key)

    def _names_hold(self, optimizer: Any, table: Table, found: list[parameters.NamedTensors]) -> bool:
        """Whether parameters that are named by their memory, at an earlier save, are called the same today."""
        if self._addresses is None:
            own, tensors = self._loose_tensors()
            self._addresses = dict(zip(own, self._flat.torch.addresses(tensors), strict=True))
            for name, tensor in self._flat.loose_dtensors:
                self._addresses[name] = self._flat.torch.addresses([tensor])[0]
            for name, tensor in parameters.named_tensors(found):
                self._addresses.setdefault(name, self._flat.torch.addresses([tensor])[0])
        groups = optimizer.param_groups
        addresses = self._flat.torch.addresses([groups[group]["params"][index] for group, index in table.by_memory])
        known = self._addresses
        others = set(known.values()) if None in table.memory_names else set()
        return all(
            address not in others if name is None else known.get(name) == address
            for name, address in zip(table.memory_names, addresses, strict=True)
        )
