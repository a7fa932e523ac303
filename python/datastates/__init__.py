"""The name under which DeepSpeed looks for its ``"datastates_ckpt"`` engine. Slackwater answers.

DeepSpeed calls ``CheckpointEngine(deepspeed_config, rank)``. docs/integrations/deepspeed.md has the config keys.
"""

from slackwater.integrations.deepspeed import CheckpointEngine

__all__ = ["CheckpointEngine"]
