"""verl's reward manager with one difference: the text that is graded keeps the marks around thinking.

verl decodes responses with `skip_special_tokens=True`. If a tokenizer declares `</think>` special, the mark is removed before the
reward function could look for it, and no response has an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from fairlen.channels import decode_response, list_hidden_ids
from fairlen.integrations.verl.settings import REWARD_MANAGER


class ThinkingTokenizer:
    """A tokenizer whose `decode` keeps the marks around thinking; everything else is the wrapped tokenizer's."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.hidden_ids = list_hidden_ids(tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False, **settings: Any) -> str:
        if skip_special_tokens:
            return decode_response(self.tokenizer, token_ids, self.hidden_ids)
        return self.tokenizer.decode(token_ids, **settings)


@register(REWARD_MANAGER)
class ThinkingRewardManager(NaiveRewardManager):
    """verl's default reward manager, with texts that keep the marks around thinking."""

    def __init__(self, config: Any, tokenizer: Any, *arguments: Any, **settings: Any) -> None:
        reader: Any = ThinkingTokenizer(tokenizer)
        super().__init__(config, reader, *arguments, **settings)
