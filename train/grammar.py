"""Generates stories and facts from models/mimir.grammar.json. src/eval/needle/grammar.ts is the same in TypeScript: with
the same random numbers both generate the same text.

A template may contain {word} (a bound variable, or a random entry of that list; {Word} capitalizes it) and [a|b|c] (one
of these). List entries are templates too."""

import functools
import json
import re
from pathlib import Path


GRAMMAR = json.loads((Path(__file__).resolve().parent.parent / "models" / "mimir.grammar.json").read_text())
LISTS = {**{word: line.split(" ") for word, line in GRAMMAR["words"].items()}, **GRAMMAR["phrases"]}
PART = re.compile(r"\{(\w+)\}|\[([^\[\]]*)\]")
BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeiou])")


def seeded(seed):
    """The generator of src/codec/parts/random.ts: a function that returns numbers in [0, 1)."""
    counter = seed * 0x9E3779B9 & 0xFFFFFFFF

    def uniform():
        nonlocal counter
        counter = counter + 0x6D2B79F5 & 0xFFFFFFFF
        z = (counter ^ counter >> 15) * (counter | 1) & 0xFFFFFFFF
        z ^= z + ((z ^ z >> 7) * (z | 61) & 0xFFFFFFFF) & 0xFFFFFFFF
        return (z ^ z >> 14) / 2**32

    return uniform


def choose(random, items):
    return items[int(random() * len(items))]


@functools.lru_cache(maxsize=None)
def parts_of(text):
    """Splits a template into plain strings and (word, alternatives) pairs, where one of the two is None."""
    parts, end = [], 0
    for match in PART.finditer(text):
        parts.append(text[end : match.start()])
        word, options = match.groups()
        parts.append((word, options.split("|") if word is None else None))
        end = match.end()
    return [part for part in [*parts, text[end:]] if part != ""]


def fill(random, text, bound):
    result = []
    for part in parts_of(text):
        if isinstance(part, str):
            result.append(part)
            continue
        word, options = part
        if word is None:
            result.append(fill(random, choose(random, options), bound))
            continue
        name = word[0].lower() + word[1:]
        value = bound.get(name)
        if value is None:
            value = fill(random, choose(random, LISTS[name]), bound)
        result.append(value if word == name else value[0].upper() + value[1:])
    return "".join(result)


def sentence(random, text, bound):
    return BEFORE_VOWEL.sub(r"\1n ", fill(random, text, bound))


def story(random):
    """A title and sentences; '' starts a new paragraph."""
    bound = {}
    for slot, text in {**choose(random, GRAMMAR["casts"]), **GRAMMAR["props"]}.items():
        bound[slot] = fill(random, text, bound)
    plot = choose(random, GRAMMAR["stories"])
    return sentence(random, plot["title"], bound), [sentence(random, text, bound) for text in plot["text"]]


def fact(random, near=None):
    """A fact with a question. With `near`, its key differs from that of `near` in one word: a distractor."""
    kind = near["kind"] if near else int(random() * len(GRAMMAR["facts"]))
    form = GRAMMAR["facts"][kind]
    kept = dict(near["key"]) if near else {}
    if near:
        del kept[choose(random, list(kept))]
    key = {slot: kept.get(slot) or fill(random, text, {}) for slot, text in form["key"].items()}
    answer = fill(random, form["value"], {})
    bound = {**key, "value": answer}
    return {
        "kind": kind,
        "key": key,
        "id": f"{kind} {' '.join(key.values())}",
        "statement": sentence(random, choose(random, form["state"]), bound),
        "question": sentence(random, choose(random, form["ask"]), bound),
        "answer": answer,
    }


def facts(random, count):
    """Facts with distinct keys; about a third of them are near another one."""
    found = {}
    while len(found) < count:
        near = choose(random, list(found.values())) if found and random() < 0.3 else None
        made = fact(random, near)
        found.setdefault(made["id"], made)
    return list(found.values())


if __name__ == "__main__":
    draw = seeded(1)
    for _ in range(3):
        title, sentences = story(draw)
        print(f"# {title}\n" + " ".join(sentence or "\n\n" for sentence in sentences))
    for made in facts(draw, 30):
        print(made["statement"], "|", made["question"], "|", made["answer"])
