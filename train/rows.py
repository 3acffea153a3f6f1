"""Training rows, generated on demand: stories, and documents with planted facts followed by questions."""

import random

import grammar
import numpy as np
import torch
from tokenizer import ASSISTANT, BEGIN, END, USER

# Loss weights of tokens. Facts and questions are random, so they weigh little; answers measure recall.
STORY, RANDOM = 1.0, 0.1
# Maximum questions per row length. Recall is learned on short rows, which are dense with questions.
MAX_QUESTIONS = {256: 8, 512: 18, 1024: 28, 2048: 40, 4096: 48, 8192: 56}
STORIES_KEPT = 2000


class RowMaker:
    """Generates rows of any length from one seed. Three in four stories are reused from a pool."""

    def __init__(self, tokenizer, seed, answer_weight=4.0):
        self.random = random.Random(seed).random
        self.encode = tokenizer.encode
        self.answer_weight = answer_weight
        self.newlines = self.encode("\n\n")
        self.stock = []

    def story(self):
        """A title, and sentences as tokens; the first sentence of a paragraph starts with two newlines."""
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
        """Tokens, their weights, and the answers: (start, end, depth of the fact, kind of fact)."""
        tokens, weights, answers = [], [], []

        def add(ids, weight):
            tokens.extend(ids)
            weights.extend([weight] * len(ids))

        short = length <= 513 and self.random() < 0.4
        while recall and len(tokens) < (length - 40 if short else 1):
            room, max_questions = (30 + int(self.random() * 200), 4) if short else (length, MAX_QUESTIONS[length - 1])
            self.add_document(room, max_questions, tokens, add, answers)
        while len(tokens) < length:
            self.add_story(add)
        return tokens[:length], weights[:length], [answer for answer in answers if answer[1] <= length]

    def add_story(self, add):
        title, pieces = self.story()
        text = [id for piece in pieces for id in piece][len(self.newlines) :]
        has_request = self.random() < 0.3
        if has_request:
            request = grammar.sentence(self.random, grammar.choose(self.random, grammar.GRAMMAR["requests"]), {"title": title})
            add([BEGIN, USER, *self.encode(request), END, ASSISTANT], RANDOM)
            add([*text, END], STORY)
        else:
            add([BEGIN], RANDOM)
            add(text, STORY)

    def add_document(self, room, max_questions, tokens, add, answers):
        """Adds a document with up to `max_questions` questions; prose fills it up to about `room` tokens in total."""
        draw = self.random
        count = 1 + max_questions // 3 + int(draw() * (max_questions - max_questions // 3))
        planted = grammar.facts(draw, count + int(draw() * count * 0.5))
        chat = draw() < 0.7
        worded = draw() < (0.3 if chat else 1)  # "Question: ... Answer:"
        # The question follows in a new paragraph, in the same paragraph, or in a new turn (as after a system message).
        way = draw()
        opening = [END, USER] if chat and way < 0.2 else [] if chat and way < 0.3 else self.newlines
        turns = [self.turn(fact, worded, i == 0 and not opening) for i, fact in enumerate(planted[:count])]
        statements = [self.encode(" " + fact["statement"]) for fact in planted]

        # The margin is for the last sentence of prose, which may exceed the room.
        left = room - 48 - sum(len(question) + len(answer) for question, answer in turns) - sum(map(len, statements))
        prose = []
        while left > 0:
            for piece in self.story()[1]:
                prose.append(piece)
                left -= len(piece)
                if left <= 0:
                    break
        order = sorted(range(len(planted)), key=lambda _: draw())
        depths = sorted(draw() for _ in planted)
        if not prose:  # only facts: the first one starts the text
            statements[order[0]] = self.encode(planted[order[0]]["statement"])
        next_fact, fact_position = 0, [0] * len(planted)
        add([BEGIN, USER] if chat else [BEGIN], RANDOM)
        start = len(tokens)
        for i, piece in enumerate(prose or [[]]):
            add(piece[len(self.newlines) :] if i == 0 else piece, STORY)
            while next_fact < len(order) and depths[next_fact] * len(prose) < i + 1:
                fact_position[order[next_fact]] = len(tokens)
                add(statements[order[next_fact]], RANDOM)
                next_fact += 1
        end = len(tokens)
        newline = self.newlines[:1]
        for i, (question, answer) in enumerate(turns):
            add([*(opening if i == 0 else [USER] if chat else newline), *question], RANDOM)
            add([END, ASSISTANT] if chat else [], RANDOM)
            answer_start = len(tokens)
            add([*answer, *([END] if chat else newline)], self.answer_weight)
            answers.append((answer_start, len(tokens), (fact_position[i] - start) / (end - start), planted[i]["kind"]))

    def turn(self, fact, worded, spaced):
        question = f"Question: {fact['question']} Answer:" if worded else fact["question"]
        return self.encode(" " * spaced + question), self.encode(" " + fact["answer"])


class Rows(torch.utils.data.IterableDataset):
    """An infinite stream of batches of about `tokens` tokens; all rows of a batch have the same length."""

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
