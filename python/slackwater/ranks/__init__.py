"""Several processes that save one state together.

Start with ``sharding``: ``Shard`` and ``Replicated``, which callers use, and RankInfo, which knows where the tensors of
this rank sit. ``boxes`` works out which boxes of a global tensor a DTensor holds; ``replicas`` finds what torch keeps
the same on all ranks. ``transport`` finds out which rank this is, and how the ranks reach each other.
"""
