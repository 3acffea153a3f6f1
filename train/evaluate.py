"""What a model can do: recall of planted facts by length and depth, loss on unseen stories, samples."""

import collections
import json

import torch
import torch.nn.functional as F
from rows import RowMaker, batch
from tokenizer import ASSISTANT, BEGIN, END, USER


@torch.no_grad()
def answered(model, tokens, answers, per_pass=65536):
    """For each answer whether every token of it, its end included, is the likeliest one. Rows may differ in length."""
    device, right = model.token_embd.device, []
    longest = max(map(len, tokens))
    rows = max(1, per_pass // longest)
    for at in range(0, len(tokens), rows):
        part = tokens[at : at + rows]
        ids = torch.zeros(len(part), max(map(len, part)), dtype=torch.long)
        for i, row in enumerate(part):
            ids[i, : len(row)] = torch.as_tensor(row)
        best = model.logits(model(ids.to(device))).argmax(-1).cpu()
        for i, spans in enumerate(answers[at : at + rows]):
            for start, end, *about in spans:
                right.append((bool((best[i, start - 1 : end - 1] == ids[i, start:end]).all()), *about))
    return right


def share(found):
    return sum(ok for ok, *_ in found) / max(1, len(found))


def by(found, key):
    groups = collections.defaultdict(list)
    for item in found:
        groups[key(item)].append(item)
    return {name: round(share(groups[name]), 3) for name in sorted(groups)}


def recall(model, tokenizer, length, rows):
    """Recall on unseen rows like those of training, and by tenths of the document."""
    tokens, _, answers = batch(RowMaker(tokenizer, f"held out {length}"), length, rows, 1)
    found = answered(model, tokens, answers)
    return share(found), by(found, lambda item: min(9, int(item[1] * 10))), by(found, lambda item: item[2])


@torch.no_grad()
def story_loss(model, tokenizer, length=512, rows=64):
    tokens, _, _ = batch(RowMaker(tokenizer, "held out stories"), length, rows, 0)
    ids = tokens.long().to(model.token_embd.device)
    logits = model.logits(model(ids[:, :-1])).float()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()


@torch.no_grad()
def sample(model, tokenizer, prompt, count=120, temperature=0.7, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    for _ in range(count):
        row = torch.tensor([ids], device=model.token_embd.device)
        logits = model.logits(model(row)[:, -1:]).float().flatten().cpu()
        ids.append(int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)))
        if ids[-1] in (BEGIN, END):
            break
    return tokenizer.decode(ids[len(prompt) :])


def documents(model, tokenizer, path):
    """The documents that documents.mjs wrote: every question asked for itself, right after the document."""
    tokens, answers = [], []
    with open(path) as file:
        for line in file:
            document = json.loads(line)
            text = tokenizer.encode(document["text"])
            for fact in document["facts"]:
                asked = [BEGIN, USER, *text, *tokenizer.encode("\n\n" + fact["question"]), END, ASSISTANT]
                answer = [*tokenizer.encode(" " + fact["answer"]), END]
                tokens.append(asked + answer)
                answers.append([(len(asked), len(asked) + len(answer), fact["depth"], fact["kind"])])
    return answered(model, tokens, answers)
