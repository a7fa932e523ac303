"""Bringing a state back: which saved tensor goes where, and what else is set once every byte is verified.

Start with ``restore_plan``, which walks the saved tree and the given state side by side. ``saved_tensors`` knows the
tensors of the checkpoint, ``targets`` the memory they go to; ``optimizers`` and ``parameter_match`` bring back the
state of optimizers, ``converted`` tensors of another dtype. ``rename`` and ``rank_local`` are options of ``restore()``.
``problems`` collects what does not fit, ``report`` says what was done. ``restorer`` runs one call of ``restore()``.
"""
