"""PyTorch's distributed checkpoint API (``torch.distributed.checkpoint``, DCP) on Slackwater's engine.

>>> from slackwater.integrations.dcp import SlackwaterReader, SlackwaterWriter
>>> writer = SlackwaterWriter("run/step-100")
>>> response = dcp.async_save(state, storage_writer=writer)
>>> response.staging_completion.result()   # before optimizer.step()
>>> dcp.load(state, storage_reader=SlackwaterReader("run/step-100"))

``writer`` and ``reader`` are DCP's storage, ``staging`` its stager, and ``planner`` a planner whose plan cache looks at
dtypes too. ``parts`` hands tensors to the engine; ``contents`` says what a checkpoint holds besides tensors.
"""

from .parts import release_pool
from .planner import SlackwaterSavePlanner
from .reader import SlackwaterReader
from .staging import SlackwaterStager
from .writer import SlackwaterWriter

__all__ = ["SlackwaterReader", "SlackwaterSavePlanner", "SlackwaterStager", "SlackwaterWriter", "release_pool"]
