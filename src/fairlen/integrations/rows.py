"""Rows in which a framework has several sequences: the turns of a trajectory, or segments of one prompt as a tree.

Turns are the maximal runs of tokens that a row's mask says the policy wrote; what lies between them was read. In a tree, tokens
that several segments continue are there once, in depth-first order: each follows the last one before it that is one less deep. A
framework sees rows of tokens whose positions are their depth; a model reads them along the tree by two hooks, and gives the
log-prob of a token where frameworks look for it, a place before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from fairlen.batch import Ints, Segments
from fairlen.engine.device import upload
from fairlen.engine.engine import find_state
from fairlen.policy.layout import find_unlike
from fairlen.policy.model import body, find_dropout
from fairlen.policy.tree import NAME, Forest, ForestMask, sort_rows
from fairlen.rollouts import Response, Segment, Status
from fairlen.schema import Spans


def find_turns(mask: ArrayLike) -> Spans:
    """Return where a row's mask [L] is not 0: from one position to before another, run by run."""
    edges = np.flatnonzero(np.diff(np.asarray(mask) != 0, prepend=False, append=False)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def was_truncated(
    token_ids: Sequence[int], mask: ArrayLike, eos_ids: Collection[int], max_response_length: int
) -> bool:
    """Return whether a limit ended a row [L]: the last token that the policy wrote is no EOS, or what it read left no room.

    A limit that an EOS came before, on the number of turns or for an observation that did not fit, leaves no trace in tokens.
    """
    own = np.flatnonzero(np.asarray(mask))
    last = own[-1] if len(own) else -1
    is_full = len(own) > 0 and last < len(token_ids) - 1 and len(token_ids) >= max_response_length
    return is_full or token_ids[last] not in eos_ids


def read_response(
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    mask: ArrayLike,
    logprobs: Sequence[float],
    is_truncated: bool,
    **place: Any,
) -> Response:
    """Return a row of a framework, prompt and what follows it [L], as a response; `place` has its other fields.

    What was read last is left out. A response has a token, also one in which the policy wrote none: it is inactive.
    """
    start, written = len(prompt_ids), find_turns(mask)
    spans = written or ((0, 1),)
    return Response(
        token_ids=(*prompt_ids, *token_ids[: spans[-1][1]]),
        num_prompt=start,
        logprobs=tuple(chain.from_iterable(logprobs[first:stop] for first, stop in spans)),
        finish="length" if is_truncated else "stop",
        turns=tuple((start + first, start + stop) for first, stop in spans),
        active=bool(written),
        **place,
    )


def grade(response: Response, outcome: float, verdict: float) -> Response:
    """Return a response with its outcome and a verdict: 1 correct, 0 incorrect, nan for none."""
    statuses: dict[float, Status] = {0.0: "incorrect", 1.0: "correct"}
    is_active = response.active and verdict in statuses
    return replace(response, outcome=outcome, status=statuses.get(verdict, "unverified"), active=is_active)


@dataclass(frozen=True)
class TreeRow:
    """Segments of one prompt as a row: the tokens after the prompt."""

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 on trained tokens, of which each belongs to one segment."""
    logprobs: list[float] = field(default_factory=list)
    """By the engine, nats."""
    depth: list[int] = field(default_factory=list)
    """Tokens of its response before it."""
    segments: list[int] = field(default_factory=list)
    """In the order of their trained tokens."""

    def add(self, number: int, segment: Segment, response: Response, shared: int) -> None:
        """Put in a segment with what precedes it, but for its first `shared` tokens, which are there."""
        start = response.num_prompt
        self.token_ids.extend(response.token_ids[shared : segment.stop])
        self.mask.extend([0] * (segment.start - shared) + [1] * (segment.stop - segment.start))
        self.logprobs.extend(response.logprobs[shared - start : segment.stop - start])
        self.depth.extend(range(shared - start, segment.stop - start))
        self.segments.append(number)


def build_rows(
    responses: Sequence[Response], segments: Sequence[Segment], chosen: Sequence[int], max_tokens: int
) -> list[TreeRow]:
    """Return the rows of the chosen segments, of at most `max_tokens` with the prompt unless one segment has more.

    A row that is cut repeats its prefix; with `max_tokens` 0 every segment is a row of its own. Trained tokens are never shared.
    """
    of_prompt: dict[int, list[int]] = defaultdict(list)
    for number in chosen:
        of_prompt[responses[segments[number].response].prompt].append(number)
    rows: list[TreeRow] = []
    for numbers in of_prompt.values():
        spans = [(segments[number], responses[segments[number].response]) for number in numbers]
        found = sort_rows([np.array(response.token_ids[: segment.stop]) for segment, response in spans], 1)
        row = None
        for place, common in zip(found.order, found.shared.tolist(), strict=True):
            segment, response = spans[place]
            shared = max(min(common, segment.start), response.num_prompt)
            if row is None or response.num_prompt + len(row.mask) + segment.stop - shared > max_tokens:
                shared, row = response.num_prompt, TreeRow(list(response.token_ids[: response.num_prompt]))
                rows.append(row)
            row.add(numbers[place], segment, response, shared)
    return rows


def group_by_row(rows: Ints, size: int) -> list[list[int]]:
    """Return which segments each of `size` rows has, given the row of each [B]."""
    found: list[list[int]] = [[] for _ in range(size)]
    for number, row in enumerate(rows.tolist()):
        found[row].append(number)
    return found


def fold(columns: Mapping[str, np.ndarray], rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Return columns of segments as columns of rows, [N, most in a row]; 0 where a row has fewer."""
    most = max(1, *map(len, rows))
    index = np.array([[*row, *[-1] * (most - len(row))] for row in rows], np.int64)
    return {name: np.append(c, np.zeros(1, c.dtype))[index] for name, c in columns.items()}


def find_trained(mask: Tensor, trains: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return which tokens train, [N, L], and how many of each segment, [N * S], row after row.

    `mask` [N, L] is 1 on tokens of segments, which have `length` tokens and of which some train, [N * S] or [N, S]. A row without
    any such token has none, whatever its length says.
    """
    length = (length.view(len(mask), -1) * mask.any(1, keepdim=True)).flatten()
    mask, trains = mask.bool(), trains.flatten().bool()
    return mask.masked_scatter(mask, trains.repeat_interleave(length)), length * trains


def count_kept(
    correction: Any, written: Ints, rows: Ints, segments: Segments, old_logprobs: Tensor, rollout_logprobs: Tensor
) -> Ints:
    """Return the tokens that a correction which recounts keeps of each segment [B], which lie in `rows` [B].

    Log-probs are of all their tokens, row after row [T]; `written` are the tokens of each row, which has a segment of none too.
    """
    order = np.lexsort((segments.turn, rows))
    length = np.where(written[rows] > 0, segments.length, 0)
    kept = np.zeros_like(length)
    kept[order] = correction.count(length[order], old_logprobs, rollout_logprobs)
    return kept


def mark_depth(mask: Tensor, depth: Tensor, width: int) -> Tensor:
    """Return a mask [N, P + width] whose ones are how deep a token is, plus one; `depth` is of responses, of at most `width`."""
    prompt = mask[:, :-width]
    depth = nn.functional.pad(depth, (0, width - depth.shape[1])) + prompt.sum(1, keepdim=True) + 1
    return mask * torch.cat([prompt.cumsum(1), depth], 1)


def find_obstacle(model: Any) -> str:
    """Return why a model cannot read trees, or nothing."""
    if next(find_dropout(model), None):
        return f"{type(model).__name__} has dropout, which would be drawn once for all rows that share a token"
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 62
    return find_state(model) or find_unlike(model, longest)


class TreeReader:
    """Makes models read rows as trees, where `is_on`."""

    def __init__(self) -> None:
        self.is_on = self.is_installed = False
        self.read: Callable[[Tensor], Tensor]

    def install(self, models: Sequence[Any]) -> str:
        """Change attention and what goes in and out of the models' decoders; or return why they cannot read trees."""
        obstacle = next(filter(None, map(find_obstacle, models)), "")
        for model in () if obstacle else models:
            model.set_attn_implementation(NAME)
            body(model).register_forward_pre_hook(self.pack, with_kwargs=True)
            body(model).register_forward_hook(self.unpack)
        self.is_installed = not obstacle
        return obstacle

    @contextmanager
    def reading(self, is_on: bool) -> Iterator[None]:
        self.is_on = is_on
        try:
            yield
        finally:
            self.is_on = False

    def pack(self, decoder: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Give the decoder the rows of a micro-batch as one forest, without padding and what nothing follows."""
        if not self.is_on:
            return None
        ids: Tensor = kwargs["input_ids"]
        depth: Tensor = kwargs["attention_mask"] - 1  # by `mark_depth`
        places = (depth.flatten() >= 0).nonzero()[:, 0]
        columns = [column.flatten()[places].cpu().numpy() for column in (ids, depth)]
        forest, source = read_forest(*columns)
        tokens, position, source = (upload(values, ids.device) for values in (forest.tokens, forest.depth, source))

        def read(hidden: Tensor) -> Tensor:
            rows = hidden.new_zeros(ids.numel(), hidden.shape[-1])
            follows = source >= 0
            return rows.index_copy(0, places[follows] - 1, hidden[0, source[follows]]).view(*ids.shape, -1)

        self.read = read
        unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device)  # keeps transformers from building a mask
        along = {"attention_mask": unused, "tree": ForestMask(forest, ids.device)}
        return args, kwargs | along | {"input_ids": tokens[None], "position_ids": position[None]}

    def unpack(self, decoder: nn.Module, args: Any, output: Any) -> Any:
        """Put what predicts a token a place before it, in the rows that there were."""
        if self.is_on:
            output.last_hidden_state = self.read(output.last_hidden_state)
        return output


def read_forest(tokens: Ints, depth: Ints) -> tuple[Forest, Ints]:
    """Return the forest that depth-first rows make together, and what predicts each of their tokens, -1 where nothing does.

    What rows have in common is there once, also where each of them trains it; what ends a path predicts nothing and is not there.
    """
    runs = np.split(np.arange(len(tokens)), np.flatnonzero(np.diff(depth) != 1) + 1)
    paths, path = [], tokens[:0]
    for run in runs:
        path = np.concatenate((path[: depth[run[0]]], tokens[run]))
        paths.append(path[:-1])
    found = sort_rows(paths)
    forest, source = found.forest(slice(len(found.order))), np.full(len(tokens), -1)
    for place, nodes in zip(found.order, forest.paths, strict=True):
        run = runs[place]
        first = int(depth[run[0]])
        source[run[not first :]] = nodes[max(first - 1, 0) :]
    return forest, source
