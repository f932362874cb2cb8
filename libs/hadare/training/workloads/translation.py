"""Translation: English to several languages, character by character, on messages that Django's translators wrote.

The catalogues are compiled gettext files (``.mo``), read here by their published layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from hadare.training.task import Task, missing_data, package_folder
from hadare.training.workloads.sampling import settings, shuffled

_PAD, _END, _FIRST_LANGUAGE = 0, 1, 2
_MAGIC = 0x950412DE
_TEST_SHARE = 8


class TranslationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Transformer of ``layers`` encoder and decoder layers, ``width`` wide; AdamW.

    ``languages`` are Django's names of locales. Messages with more than ``length`` characters are left out.
    """

    languages: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)] = ("de", "es", "fr", "it", "nl", "pt")
    length: Annotated[int, Meta(ge=8, le=1024)] = 32
    width: Annotated[int, Meta(ge=8, le=4096)] = 48
    heads: Annotated[int, Meta(ge=1, le=64)] = 4
    layers: Annotated[int, Meta(ge=1, le=32)] = 1
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    lr: Annotated[float, Meta(gt=0)] = 5e-3
    weight_decay: Annotated[float, Meta(ge=0)] = 1e-2


class Sentences(NamedTuple):
    """Codes of sources (the language, the text, an end) and of targets (the text, an end), padded by 0."""

    source: Tensor
    target: Tensor


class Transformer(nn.Module):
    """Reads a source whole and predicts each character of the target from those before it."""

    def __init__(self, vocabulary: int, s: TranslationConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, s.width)
        self.place = nn.Embedding(s.length + 2, s.width)
        shape: tuple[int, int, int, float] = (s.width, s.heads, 2 * s.width, s.dropout)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(*shape, batch_first=True, norm_first=True) for _ in range(s.layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(*shape, batch_first=True, norm_first=True) for _ in range(s.layers)
        )
        self.norm = nn.LayerNorm(s.width)
        self.head = nn.Linear(s.width, vocabulary)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        """Scores of each next character, given the source and those ``before``."""
        hidden_source = source == _PAD
        memory = self._embedded(source)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=hidden_source)
        text = self._embedded(before)
        later = torch.ones(before.shape[1], before.shape[1], dtype=torch.bool, device=before.device).triu(1)
        for layer in self.decoder:
            text = layer(text, memory, tgt_mask=later, memory_key_padding_mask=hidden_source)
        scores: Tensor = self.head(self.norm(text))
        return scores

    def _embedded(self, codes: Tensor) -> Tensor:
        places = torch.arange(codes.shape[1], device=codes.device)
        embedded: Tensor = self.embed(codes) + self.place(places)
        return embedded


class Translation(Task[Sentences]):
    """``cross_entropy`` (nats a character) and ``accuracy`` (of characters, given those before) on held-out messages.

    Every eighth English message is held out, in all languages at once.
    """

    metric: ClassVar[str] = "cross_entropy"
    better: ClassVar[Literal["higher", "lower"]] = "lower"

    def __init__(self, config: Mapping[str, Any], batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.settings = settings(self.config, TranslationConfig)

    def build_model(self) -> nn.Module:
        return Transformer(self._corpus[2], self.settings)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.settings.lr, weight_decay=self.settings.weight_decay)

    def batches(self, data_seed: int) -> Iterator[Sentences]:
        train = self._corpus[0]
        for index in shuffled(len(train.source), self.batch_size, data_seed):
            yield _cut(Sentences(train.source[index], train.target[index]))

    def loss(self, model: nn.Module, batch: Sentences) -> Tensor:
        return self._judged(model, batch)[0]

    def weight(self, batch: Sentences) -> float:
        return int((batch.target != _PAD).sum())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        nats, right, total = 0.0, 0, 0
        test = self._corpus[1]
        parts = (torch.split(part, 256) for part in test)
        for source, target in zip(*parts, strict=True):
            loss, hits, count = self._judged(model, _cut(Sentences(source.to(device), target.to(device))))
            nats, right, total = nats + float(loss) * count, right + hits, total + count
        return {"cross_entropy": nats / total, "accuracy": right / total}

    def _judged(self, model: nn.Module, batch: Sentences) -> tuple[Tensor, int, int]:
        """The mean loss of a character, how many were guessed, and of how many."""
        before = functional.pad(batch.target[:, :-1], (1, 0), value=_END)
        scores = model(batch.source, before)
        counts = batch.target != _PAD
        loss = functional.cross_entropy(scores.flatten(0, 1), batch.target.flatten(), ignore_index=_PAD)
        if torch.is_grad_enabled():
            return loss, 0, 0
        return loss, int(((scores.argmax(-1) == batch.target) & counts).sum()), int(counts.sum())

    @cached_property
    def _corpus(self) -> tuple[Sentences, Sentences, int]:
        """What is trained on, what is held out, and how many codes there are."""
        s = self.settings
        rows = [
            (number, english, text)
            for number, language in enumerate(s.languages)
            for english, text in sorted(read_catalogues(language).items())
            if len(english) <= s.length and len(text) <= s.length
        ]
        first = _FIRST_LANGUAGE + len(s.languages)
        letters = {c: first + i for i, c in enumerate(sorted({c for _, a, b in rows for c in a + b}))}
        sources = [[_FIRST_LANGUAGE + number, *(letters[c] for c in english), _END] for number, english, _ in rows]
        targets = [[*(letters[c] for c in text), _END] for _, _, text in rows]
        held_out = torch.tensor([_is_held_out(english) for _, english, _ in rows])
        whole = Sentences(_padded(sources, s.length + 2), _padded(targets, s.length + 1))
        train, test = (Sentences(whole.source[k], whole.target[k]) for k in (~held_out, held_out))
        return train, test, first + len(letters)


def read_catalogues(language: str) -> dict[str, str]:
    """Django's messages in one language, by their English. Raises ``missing_data``."""
    root = package_folder("django")
    files = sorted(root.glob(f"**/locale/{language}/LC_MESSAGES/*.mo"))
    if not files:
        raise missing_data(f"package django has no catalogue of {language!r} here: pip install 'hadare[workloads]'")
    messages: dict[str, str] = {}
    for path in files:
        for original, translated in _entries(path):
            # The context stands before the message, plural forms after it.
            english = original.rpartition("\x04")[2].partition("\x00")[0]
            text = translated.partition("\x00")[0]
            if english and text and text != english:
                messages.setdefault(english, text)
    return messages


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Originals and translations of a compiled catalogue."""
    data = path.read_bytes()
    magic, _, count, originals, translations = struct.unpack_from("<5I", data)
    if magic != _MAGIC:
        raise missing_data(f"{path.name} is not a catalogue that can be read here")
    for table in range(count):
        yield _text(data, originals + 8 * table), _text(data, translations + 8 * table)


def _text(data: bytes, entry: int) -> str:
    length, place = struct.unpack_from("<2I", data, entry)
    return data[place : place + length].decode()


def _is_held_out(english: str) -> bool:
    return sha256(english.encode()).digest()[0] % _TEST_SHARE == 0


def _padded(rows: list[list[int]], width: int) -> Tensor:
    table = torch.full((len(rows), width), _PAD)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row)
    return table


def _cut(batch: Sentences) -> Sentences:
    """Without the columns that are padding in all rows."""
    source, target = (int((t != _PAD).sum(dim=1).max()) for t in batch)
    return Sentences(batch.source[:, :source], batch.target[:, :target])
