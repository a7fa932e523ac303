"""The checkpoint engine that DeepSpeed uses when its config has ``"datastates_ckpt"``.

DeepSpeed saves a checkpoint (a *tag*) as several files on several ranks. Each file becomes one Slackwater version, and
one manifest per tag says which files belong together. From a call of DeepSpeed on:

- ``engine`` takes ``save``, ``load`` and ``wait``, and closes tags;
- ``settings`` reads the config;
- ``objects`` gives DeepSpeed's own Python objects a plain form;
- ``spool`` writes each file, through one engine and one pool;
- ``finisher`` is the thread that moves finished files into their tag and commits the tag;
- ``board`` is how the ranks tell each other that their files are durable;
- ``tag_directory`` is what a tag looks like on disk;
- ``stub`` is the small file at the path that DeepSpeed knows, which ``torch.load`` can open;
- ``loading`` reads files back.

docs/decisions/0016-deepspeed-client.md says why it is built this way.
"""

from .engine import CheckpointEngine
from .loading import load_file
from .stub import read_stub

__all__ = ["CheckpointEngine", "load_file", "read_stub"]
