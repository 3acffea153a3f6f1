"""Stories and facts from models/mimir.grammar.json. src/eval/needle/grammar.ts is the same in TypeScript: for the same
random numbers both make the same text.

A text may hold {word} (a bound variable, or any entry of that list; {Word} is the same with a capital) and [a|b|c]
(one of these). Entries of lists may hold the same."""

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
    """The text cut into plain strings and (word, alternatives) pairs, of which one is None."""
    parts, at = [], 0
    for match in PART.finditer(text):
        parts.append(text[at : match.start()])
        word, options = match.groups()
        parts.append((word, options.split("|") if word is None else None))
        at = match.end()
    return [part for part in [*parts, text[at:]] if part != ""]


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
        small = word[0].lower() + word[1:]
        found = bound.get(small)
        if found is None:
            found = fill(random, choose(random, LISTS[small]), bound)
        result.append(found if word == small else found[0].upper() + found[1:])
    return "".join(result)


def sentence(random, text, bound):
    return BEFORE_VOWEL.sub(r"\1n ", fill(random, text, bound))


def story(random):
    """A title and sentences; '' stands for a new paragraph."""
    bound = {}
    for slot, text in {**choose(random, GRAMMAR["casts"]), **GRAMMAR["props"]}.items():
        bound[slot] = fill(random, text, bound)
    plot = choose(random, GRAMMAR["stories"])
    return sentence(random, plot["title"], bound), [sentence(random, text, bound) for text in plot["text"]]


def fact(random, near=None):
    """A fact with a question. One `near` another asks the same of a thing whose name differs in one word."""
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
    """Facts that differ in what they are about; about a third of them are near another one."""
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
