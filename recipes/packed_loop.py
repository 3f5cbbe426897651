"""The plain loop with packed rows: responses of any length back to back, as many to a forward pass as fit into PACK tokens."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen import Skips, compose, finish_update, plan_rows, playground, policy_loss
from fairlen.tasks.playground import Playground

NUM_PROMPTS, NUM_SAMPLES, MAX_TOKENS, NUM_STEPS, NUM_EPOCHS, PACK = 4, 8, 64, 2, 2, 512


def generate(model, tokenizer, problems):
    """Token ids of each prompt and of its response, with EOS where it came, as lists."""
    inputs = tokenizer([problem.text for problem in problems], return_tensors="pt", padding=True)
    settings = dict(do_sample=True, top_k=0, max_new_tokens=MAX_TOKENS, pad_token_id=tokenizer.pad_token_id)
    responses = model.generate(**inputs, **settings)[:, inputs["input_ids"].shape[1] :].tolist()
    ends = [[*row, tokenizer.eos_token_id].index(tokenizer.eos_token_id) + 1 for row in responses]
    prompts = [tokenizer(problem.text)["input_ids"] for problem in problems]
    return [(prompt, row[:end]) for prompt, row, end in zip(prompts, responses, ends, strict=True)]


def pack(samples, rows):
    """Token ids, positions, and the row of the plan of each token (-1: a prompt's), [1, T] each."""
    ids, positions, sequence = [], [], []
    for row in rows:
        prompt, response = samples[row]
        ids += prompt + response
        positions += range(len(prompt) + len(response))
        sequence += [-1] * len(prompt) + [row] * len(response)
    return tuple(torch.tensor([column]) for column in (ids, positions, sequence))


def split_rows(samples):
    """Rows of each forward pass."""
    packs, room = [], 0
    for row, (prompt, response) in enumerate(samples):
        if len(prompt) + len(response) > room:
            packs, room = [*packs, []], PACK
        packs[-1].append(row)
        room -= len(prompt) + len(response)
    return packs


def log_probs(model, ids, positions):
    """Nats of each token after those before it, [1, T]; positions that begin again at 0 separate the rows."""
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, :-1]
    found = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
    return torch.cat([found[:, :1] * 0.0, found], 1)


def main():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(playground.PATH)
    tokenizer = AutoTokenizer.from_pretrained(playground.PATH, padding_side="left")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    task, method, skips = Playground(), compose("fspo+balanced"), Skips()

    for step in range(NUM_STEPS):
        numbers = [step * NUM_PROMPTS + number for number in range(NUM_PROMPTS) for _ in range(NUM_SAMPLES)]
        problems = [task.train(number) for number in numbers]
        with torch.no_grad():
            samples = generate(model, tokenizer, problems)
            packs = [pack(samples, rows) for rows in split_rows(samples)]
            old = [log_probs(model, ids, positions) for ids, positions, _ in packs]
        texts = [tokenizer.decode(response, skip_special_tokens=True) for _, response in samples]
        rewards = [float(t.rpartition("#")[2] == p.answer) for t, p in zip(texts, problems, strict=True)]
        lengths = [len(response) for _, response in samples]
        plan = plan_rows(method, groups=numbers, lengths=lengths, rewards=rewards, max_response_length=MAX_TOKENS)

        for epoch in range(NUM_EPOCHS):
            counts = []
            for (ids, positions, sequence), before in zip(packs, old, strict=True):
                now = log_probs(model, ids, positions)
                loss = policy_loss(method, plan.to(model.device), now, before if epoch else None, sequence=sequence)
                loss.total.backward()
                counts.append(loss.counts)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            done = finish_update(method, counts, norm, skips)
            method = done.method
            if done.may_step:
                optimizer.step()
            optimizer.zero_grad()
        right, tokens = sum(rewards) / len(rewards), sum(lengths) / len(lengths)
        print(f"step {step}: {right:.0%} right, {tokens:.1f} tokens, {len(packs)} forward passes")


if __name__ == "__main__":
    main()
