"""Training rows, made as they are needed: stories, and documents with planted facts followed by questions."""

import random

import grammar
import numpy as np
import torch
from tokenizer import ASSISTANT, BEGIN, END, USER

# How much a token counts in the loss. What a fact says and what is asked is chance; the answer is what recall means.
STORY, CHANCE = 1.0, 0.1
# Most questions of a row. Short rows are dense with them: that is where recall is learned.
QUESTIONS = {256: 8, 512: 18, 1024: 28, 2048: 40, 4096: 48, 8192: 56}
STORIES_KEPT = 2000


class RowMaker:
    """Makes rows of any length from one seed. Stories are drawn from a stock of which a fourth is new each time."""

    def __init__(self, tokenizer, seed, answer_weight=4.0):
        self.random = random.Random(seed).random
        self.encode = tokenizer.encode
        self.answer_weight = answer_weight
        self.newlines = self.encode("\n\n")
        self.stock = []

    def story(self):
        """A title, and sentences as tokens; a sentence that opens a paragraph starts with two newlines."""
        if len(self.stock) >= STORIES_KEPT and self.random() > 0.25:
            return grammar.choose(self.random, self.stock)
        title, sentences = grammar.story(self.random)
        before = ["", *sentences]
        pieces = [
            self.newlines + self.encode(text) if before[i] == "" else self.encode(" " + text)
            for i, text in enumerate(sentences)
            if text != ""
        ]
        if len(self.stock) < STORIES_KEPT:
            self.stock.append((title, pieces))
        else:
            self.stock[int(self.random() * STORIES_KEPT)] = (title, pieces)
        return title, pieces

    def row(self, length, recall):
        """Tokens, their weights, and where the answers are: (start, end, depth of the fact, kind of fact)."""
        tokens, weights, answers = [], [], []

        def add(ids, weight):
            tokens.extend(ids)
            weights.extend([weight] * len(ids))

        short = length <= 513 and self.random() < 0.4
        while recall and len(tokens) < (length - 40 if short else 1):
            room, most = (30 + int(self.random() * 200), 4) if short else (length, QUESTIONS[length - 1])
            self.add_document(room, most, tokens, add, answers)
        while len(tokens) < length:
            self.add_story(add)
        return tokens[:length], weights[:length], [answer for answer in answers if answer[1] <= length]

    def add_story(self, add):
        title, pieces = self.story()
        text = [id for piece in pieces for id in piece][len(self.newlines) :]
        asked = self.random() < 0.3
        if asked:
            request = grammar.sentence(self.random, grammar.choose(self.random, grammar.GRAMMAR["requests"]), {"title": title})
            add([BEGIN, USER, *self.encode(request), END, ASSISTANT], CHANCE)
            add([*text, END], STORY)
        else:
            add([BEGIN], CHANCE)
            add(text, STORY)

    def add_document(self, room, most, tokens, add, answers):
        """A document and up to `most` questions, of about `room` tokens together; as much prose as there is room for."""
        draw = self.random
        count = 1 + most // 3 + int(draw() * (most - most // 3))
        planted = grammar.facts(draw, count + int(draw() * count * 0.5))
        chat = draw() < 0.7
        worded = draw() < (0.3 if chat else 1)  # "Question: ... Answer:"
        # After the document: a paragraph of its own, the same paragraph, or, as after a system message, a new turn.
        way = draw()
        opening = [END, USER] if chat and way < 0.2 else [] if chat and way < 0.3 else self.newlines
        turns = [self.turn(fact, worded, i == 0 and not opening) for i, fact in enumerate(planted[:count])]
        statements = [self.encode(" " + fact["statement"]) for fact in planted]

        # The last sentence of prose may be one too many, hence the margin.
        left = room - 48 - sum(len(question) + len(answer) for question, answer in turns) - sum(map(len, statements))
        prose = []
        while left > 0:
            for piece in self.story()[1]:
                prose.append(piece)
                left -= len(piece)
                if left <= 0:
                    break
        places = sorted(range(len(planted)), key=lambda _: draw())
        depths = sorted(draw() for _ in planted)
        if not prose:  # nothing but facts: the first one opens the text
            statements[places[0]] = self.encode(planted[places[0]]["statement"])
        at, place_of = 0, [0] * len(planted)
        add([BEGIN, USER] if chat else [BEGIN], CHANCE)
        start = len(tokens)
        for i, piece in enumerate(prose or [[]]):
            add(piece[len(self.newlines) :] if i == 0 else piece, STORY)
            while at < len(places) and depths[at] * len(prose) < i + 1:
                place_of[places[at]] = len(tokens)
                add(statements[places[at]], CHANCE)
                at += 1
        end = len(tokens)
        newline = self.newlines[:1]
        for i, (question, answer) in enumerate(turns):
            add([*(opening if i == 0 else [USER] if chat else newline), *question], CHANCE)
            add([END, ASSISTANT] if chat else [], CHANCE)
            asked = len(tokens)
            add([*answer, *([END] if chat else newline)], self.answer_weight)
            answers.append((asked, len(tokens), (place_of[i] - start) / (end - start), planted[i]["kind"]))

    def turn(self, fact, worded, spaced):
        question = f"Question: {fact['question']} Answer:" if worded else fact["question"]
        return self.encode(" " * spaced + question), self.encode(" " + fact["answer"])


class Rows(torch.utils.data.IterableDataset):
    """Batches without end: tokens and weights of about `tokens` tokens, all rows of one length."""

    def __init__(self, tokenizer, seed, lengths, tokens, recall, answer_weight):
        self.tokenizer, self.seed, self.answer_weight = tokenizer, seed, answer_weight
        self.lengths, self.tokens, self.recall = lengths, tokens, recall

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        seed = f"{self.seed} {worker.id if worker else 0}"
        draw = random.Random(f"{seed} lengths").random
        maker = RowMaker(self.tokenizer, seed, self.answer_weight)
        while True:
            length = grammar.choose(draw, self.lengths)
            yield batch(maker, length, self.tokens // length, self.recall)[:2]


def batch(maker, length, rows, recall):
    made = [maker.row(length + 1, maker.random() < recall) for _ in range(rows)]
    tokens = torch.from_numpy(np.array([row[0] for row in made], dtype=np.int16))
    weights = torch.from_numpy(np.array([row[1] for row in made], dtype=np.float16))
    return tokens, weights, [row[2] for row in made]
