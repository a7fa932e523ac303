"""The torch part of ``slackwater doctor``: is this machine's torch ready? ``python -m slackwater.doctor --dir DIR``.

Start with ``checks``, the table of all checks. ``runner`` runs it, ``thresholds`` has every limit with its reason.
Importing this package loads nothing of torch; ``__main__`` does that once its standard output is safe.
"""
