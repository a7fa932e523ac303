"""Restores a state: which saved tensor goes where, and what else is set once every byte is verified.

Start with ``restore_plan``, which walks the saved tree and the given state side by side. ``saved_tensors`` knows the
tensors of the checkpoint, and ``targets`` the memory they go to. ``optimizers`` and ``parameter_match`` restore the
state of optimizers, ``converted`` tensors of another dtype. ``rename`` and ``rank_local`` are options of ``restore()``.
``problems`` collects what does not fit, and ``report`` says what was done. ``restorer`` runs one call of ``restore()``.
"""
