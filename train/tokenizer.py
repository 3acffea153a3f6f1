"""Mimir's vocabulary: byte-level BPE like GPT-2's (in a GGUF file: model gpt2, pre gpt-2).

Merges of digits are fixed, not learned: ' 4817' is always ' 48' and '17', so that a number has two tokens everywhere."""

import collections
import json
import random
import re

import grammar

SPECIAL = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]
BEGIN, USER, ASSISTANT, END = range(4)
SIZE = 4096
# GPT-2's pattern restricted to ASCII, which is all that the grammar generates. The last \s+ matches the rest.
WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_letters():
    """GPT-2's bytes-to-unicode table: printable bytes map to themselves, the others to letters from U+0100."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in prints]
    return {**{byte: chr(byte) for byte in prints}, **{byte: chr(0x100 + i) for i, byte in enumerate(others)}}


LETTERS = byte_letters()
BYTES = {letter: byte for byte, letter in LETTERS.items()}
SPACE = LETTERS[0x20]


def bytes_to_unicode(text):
    return "".join(LETTERS[byte] for byte in text.encode())


def digit_merges():
    digits = "0123456789"
    yield from ((SPACE, a) for a in digits)
    yield from ((SPACE + a, b) for a in digits for b in digits)
    yield from ((a, b) for a in digits for b in digits)


def merge_pair(symbols, pair):
    result, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            result.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            result.append(symbols[i])
            i += 1
    return result


def learn_merges(counts, count):
    """Standard BPE training: repeatedly merges the most frequent adjacent pair."""
    words = [(list(bytes_to_unicode(word)), times) for word, times in counts.items()]
    pairs, where = collections.Counter(), collections.defaultdict(set)

    def count_pairs(index, sign):
        symbols, times = words[index]
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += sign * times
            where[pair].add(index)

    for index in range(len(words)):
        count_pairs(index, 1)
    merges = []
    while len(merges) < count:
        best = max(pairs, key=lambda pair: (pairs[pair], pair), default=None)
        if best is None or pairs[best] <= 0:
            break
        merges.append(best)
        for index in list(where[best]):
            count_pairs(index, -1)
            words[index] = (merge_pair(words[index][0], best), words[index][1])
            count_pairs(index, 1)
        del pairs[best]
    return merges


def word_counts():
    """Word counts of stories and facts. Invented words count little, so that they stay several tokens."""
    draw = random.Random("vocabulary").random
    counts = collections.Counter()
    for _ in range(3000):
        sentences = grammar.story(draw)[1]
        counts.update(word for i, text in enumerate(sentences) for word in WORD.findall(" " * (i > 0) + text))
        for fact in grammar.facts(draw, 4):
            counts.update(WORD.findall(f" {fact['statement']} {fact['question']} {fact['answer']}"))
            counts.update(WORD.findall(fact["question"]))
    for line in grammar.GRAMMAR["words"].values():
        counts.update({form: 200 for word in line.split(" ") for form in (word, " " + word)})
    towns = re.compile(f" ?({'|'.join(grammar.LISTS['townStart'])})({'|'.join(grammar.LISTS['townEnd'])})")
    odd = grammar.LISTS["odd"][0]
    listed = {word for line in grammar.GRAMMAR["words"].values() for word in line.split(" ")}
    generated = {form for _ in range(20000) for word in [grammar.fill(draw, odd, {})] for form in (word, word.capitalize())}
    invented = generated - listed
    rare = {form: 1 for word in invented for form in (word, " " + word)}
    known = {w: n for w, n in counts.items() if w.strip() not in invented and not towns.fullmatch(w) and not re.search("[0-9]", w)}
    return {**rare, **known}


class Tokenizer:
    def __init__(self, merges):
        self.merges = merges
        self.tokens = [*SPECIAL, *LETTERS.values(), *("".join(pair) for pair in merges)]
        self.ids = {token: id for id, token in enumerate(self.tokens)}
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.cache = {}

    @classmethod
    def train(cls):
        digits = list(digit_merges())
        return cls([*digits, *learn_merges(word_counts(), SIZE - len(SPECIAL) - 256 - len(digits))])

    @classmethod
    def load(cls, path):
        with open(path) as file:
            return cls([tuple(pair) for pair in json.load(file)])

    def save(self, path):
        with open(path, "w") as file:
            json.dump(self.merges, file)

    def encode(self, text):
        ids = []
        for word in WORD.findall(text):
            word_ids = self.cache.get(word)
            if word_ids is None:
                word_ids = self.cache[word] = self.encode_word(word)
                if len(self.cache) > 100_000:
                    self.cache.clear()
            ids += word_ids
        return ids

    def encode_word(self, word):
        symbols = list(bytes_to_unicode(word))
        while len(symbols) > 1:
            best = min(zip(symbols, symbols[1:]), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            symbols = merge_pair(symbols, best)
        return [self.ids[symbol] for symbol in symbols]

    def decode(self, ids):
        data = b"".join(
            self.tokens[id].encode() if id < len(SPECIAL) else bytes(BYTES[letter] for letter in self.tokens[id])
            for id in ids
        )
        return data.decode(errors="replace")
