"""GRPO in a plain PyTorch loop, on the playground: docs/anywhere.md shows the lines that give it a method of fairlen's."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen import playground
from fairlen.tasks.playground import Playground

NUM_PROMPTS, NUM_SAMPLES, MAX_TOKENS, NUM_STEPS, NUM_EPOCHS, CLIP = 8, 8, 96, 3, 2, 0.2
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(playground.PATH)
tokenizer = AutoTokenizer.from_pretrained(playground.PATH, padding_side="left")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
task = Playground()


def generate(problems):
    """Token ids of prompts and responses [N, P + L], where there are tokens, and which of them are the response's [N, L]."""
    inputs = tokenizer([problem.text for problem in problems], return_tensors="pt", padding=True)
    ids = model.generate(
        **inputs, do_sample=True, top_k=0, max_new_tokens=MAX_TOKENS, pad_token_id=tokenizer.pad_token_id
    )
    response = ids[:, inputs["input_ids"].shape[1] :]
    ended = (response == tokenizer.eos_token_id).cumsum(1)
    mask = (ended == 0) | ((ended == 1) & (response == tokenizer.eos_token_id))  # up to EOS, with it
    return ids, torch.cat([inputs["attention_mask"], mask], 1), mask


def log_probs(ids, attention_mask, width):
    """Nats of the last `width` tokens of each row, [N, width]."""
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention_mask, position_ids=positions).logits[:, -width - 1 : -1]
    return logits.log_softmax(-1).gather(2, ids[:, -width:, None])[:, :, 0]


for step in range(NUM_STEPS):
    problems = [task.train(step * NUM_PROMPTS + number) for number in range(NUM_PROMPTS) for _ in range(NUM_SAMPLES)]
    with torch.no_grad():
        ids, attention_mask, mask = generate(problems)
        old = log_probs(ids, attention_mask, mask.shape[1])
    texts = tokenizer.batch_decode(ids[:, -mask.shape[1] :], skip_special_tokens=True)
    answers = [problem.answer for problem in problems]
    rewards = torch.tensor([float(t.rpartition("#")[2] == a) for t, a in zip(texts, answers, strict=True)])

    groups = rewards.view(NUM_PROMPTS, NUM_SAMPLES)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)

    for _ in range(NUM_EPOCHS):
        for rows in torch.arange(len(ids)).split(16):
            now = log_probs(ids[rows], attention_mask[rows], mask.shape[1])
            ratio = (now - old[rows]).exp()
            gain = torch.min(ratio * advantages[rows], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[rows])
            loss = -((gain * mask[rows]).sum(1) / mask[rows].sum(1)).sum() / len(ids)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    print(f"step {step}: {rewards.mean():.0%} right, {mask.sum(1).float().mean():.1f} tokens")
