"""A small GPT and the text it reads: plain PyTorch, nothing of Slackwater in it.

`Batches` is a data loader with a state: it can say where it stands and go on from there, for an exact resume.
"""

from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = Path(__file__).parent / "data" / "logbook.txt"


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Calling it with tokens and targets gives the loss. Output and embedding share their weight, as in GPT-2."""

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 6,
        width: int = 320,
        heads: int = 5,
        context: int = 128,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.token.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Batches:
    """Endless batches of (tokens, targets) from random places of the text, one token a character."""

    def __init__(self, *, batch: int = 6, context: int = 128, seed: int = 0):
        text = TEXT.read_text(encoding="ascii")
        alphabet = {character: token for token, character in enumerate(sorted(set(text)))}
        self.vocabulary = len(alphabet)
        self._tokens = torch.tensor([alphabet[character] for character in text])
        self._batch, self._context = batch, context
        self._generator = torch.Generator().manual_seed(seed)

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self._tokens) - self._context, (self._batch, 1), generator=self._generator)
        window = starts + torch.arange(self._context + 1)
        tokens = self._tokens[window]
        return tokens[:, :-1], tokens[:, 1:]

    def state_dict(self) -> dict:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self._generator.set_state(state["generator"])
