"""Evaluates a model: recall of planted facts by length and depth, loss on held-out stories, samples."""

import collections
import json

import torch
import torch.nn.functional as F
from rows import RowMaker, batch
from tokenizer import ASSISTANT, BEGIN, END, USER


@torch.no_grad()
def check_answers(model, tokens, answers, per_pass=65536):
    """For each answer, whether greedy decoding gives all its tokens and its end token. Rows may differ in length."""
    device, right = model.token_embd.device, []
    longest = max(map(len, tokens))
    rows = max(1, per_pass // longest)
    for first in range(0, len(tokens), rows):
        part = tokens[first : first + rows]
        ids = torch.zeros(len(part), max(map(len, part)), dtype=torch.long)
        for i, row in enumerate(part):
            ids[i, : len(row)] = torch.as_tensor(row)
        best = model.logits(model(ids.to(device))).argmax(-1).cpu()
        for i, spans in enumerate(answers[first : first + rows]):
            for start, end, *about in spans:
                right.append((bool((best[i, start - 1 : end - 1] == ids[i, start:end]).all()), *about))
    return right


def accuracy(results):
    return sum(ok for ok, *_ in results) / max(1, len(results))


def accuracy_by(results, key):
    groups = collections.defaultdict(list)
    for item in results:
        groups[key(item)].append(item)
    return {name: round(accuracy(groups[name]), 3) for name in sorted(groups)}


def recall(model, tokenizer, length, rows):
    """Recall on held-out rows: in total, by tenth of the document, and by kind of fact."""
    tokens, _, answers = batch(RowMaker(tokenizer, f"held out {length}"), length, rows, 1)
    results = check_answers(model, tokens, answers)
    by_depth = accuracy_by(results, lambda item: min(9, int(item[1] * 10)))
    return accuracy(results), by_depth, accuracy_by(results, lambda item: item[2])


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
    """Recall on the documents of documents.mjs: every question is asked separately, right after the document."""
    tokens, answers = [], []
    with open(path) as file:
        for line in file:
            document = json.loads(line)
            text = tokenizer.encode(document["text"])
            for fact in document["facts"]:
                prompt = [BEGIN, USER, *text, *tokenizer.encode("\n\n" + fact["question"]), END, ASSISTANT]
                answer = [*tokenizer.encode(" " + fact["answer"]), END]
                tokens.append(prompt + answer)
                answers.append([(len(prompt), len(prompt) + len(answer), fact["depth"], fact["kind"])])
    return check_answers(model, tokens, answers)
