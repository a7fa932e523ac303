"""A state taken apart, and its values as text: what ``save()`` looks at.

Start with ``tree``: its Flattener walks a state and finds tensors, their names, and everything else. ``capture`` makes
of it what the engine takes. ``codec`` writes plain values as typed JSON, ``decoder`` reads them, ``nodes`` looks at
saved ones without decoding them. ``names`` has the names of tensors and patterns for them. ``parameters`` and
``parameter_names`` name the parameters of optimizers; ``tables`` saves the work of naming from save to save;
``memory`` says where a tensor's bytes lie.
"""
