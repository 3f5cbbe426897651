"""An agent loop of one's own, in verl's way: the game of guess, played on verl's rollout servers."""

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from fairlen.tasks.task import Problem
from recipes.guess import MAX_TURNS, Guess, read_guess


class GuessLoop(AgentLoopBase):
    """One trajectory: turns of the policy, and `<` or `>` after each."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:  # type: ignore[override]
        messages, secret = list(kwargs["raw_prompt"]), kwargs["reward_model"]["ground_truth"]
        prompt_ids: list[int] = list(await self.ct_build_initial_tokens(messages))
        task, limit, request_id, fields = Guess(), self.rollout_config.response_length, uuid4().hex, {}
        game = task.environment(Problem("", messages[0]["content"], (0,), secret), seed=0)
        ids, mask, logprobs, turns, is_done = list[int](), list[int](), list[float](), 0, False
        while turns < MAX_TURNS and not is_done:
            asked = {**sampling_params, "max_tokens": limit - len(ids)}
            turn = await self.server_manager.generate(request_id, prompt_ids=prompt_ids + ids, sampling_params=asked)
            ids, mask, turns = ids + turn.token_ids, mask + [1] * len(turn.token_ids), turns + 1
            logprobs, fields = logprobs + (turn.log_probs or []), turn.extra_fields
            if turn.token_ids[-1] != self.tokenizer.eos_token_id:
                break
            text: Any = self.tokenizer.decode(turn.token_ids, skip_special_tokens=True)
            answer = task.encode_observation(game.tell(read_guess(text)))
            is_done = not answer
            if len(ids) + len(answer) >= limit:
                break
            ids, mask, logprobs = [*ids, *answer], mask + [0] * len(answer), logprobs + [0.0] * len(answer)
        verdict = await game.grade()
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=ids, response_mask=mask, response_logprobs=logprobs, num_turns=2 * turns,
            reward_score=verdict.outcome, metrics={},  # type: ignore[arg-type]  pydantic makes its type of it
            extra_fields={**fields, "turn_scores": [], "tool_rewards": [], "truncated": not is_done},
        )  # fmt: skip
