"""Trains Mimir on one GPU. See README.md for the command; `--help` for the rest."""

import argparse
import os
import time
from pathlib import Path

import evaluate
import torch
from model import Config, Model, weighted_loss
from muon import Muon
from rows import Rows
from tokenizer import ASSISTANT, BEGIN, END, USER, Tokenizer

# Row lengths and millions of tokens per stage. Recall is learned on short rows; long rows only extend its range.
PLAN = "256:60 512,1024:120 512,2048:220 512,2048,8192,8192:600"


def arguments():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--out", type=Path, default=Path("out"))
    parse.add_argument("--plan", default=PLAN, help="stages: LENGTH,LENGTH:MILLIONS ...")
    parse.add_argument("--batch", type=int, default=65536, help="tokens per step")
    parse.add_argument("--lr", type=float, default=0.01, help="learning rate of Muon; AdamW uses a tenth of it")
    parse.add_argument("--decay-share", type=float, default=0.5, help="share of the tokens over which the learning rate decays to 0")
    parse.add_argument("--recall", type=float, default=0.75, help="share of rows with planted facts")
    parse.add_argument("--answer-weight", type=float, default=4.0)
    parse.add_argument("--workers", type=int, default=15)
    parse.add_argument("--eval-seconds", type=float, default=30)
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--layers", type=int, default=8)
    parse.add_argument("--width", type=int, default=256)
    parse.add_argument("--no-compile", action="store_true")
    parse.add_argument("--start", type=Path, help="weights to start from")
    parse.add_argument("--documents", type=Path, help="needle documents to evaluate on at the end")
    return parse.parse_args()


def stages_of(plan):
    for stage in plan.split():
        lengths, millions = stage.split(":")
        yield [int(length) for length in lengths.split(",")], float(millions) * 1e6


def batches_of(args, tokenizer, index, lengths):
    rows = Rows(tokenizer, f"{args.seed} {index}", lengths, args.batch, args.recall, args.answer_weight)
    extra = {"prefetch_factor": 6} if args.workers else {}
    pin = torch.cuda.is_available()
    return iter(torch.utils.data.DataLoader(rows, batch_size=None, num_workers=args.workers, pin_memory=pin, **extra))


def report(model, tokenizer, lengths, full=False):
    model.eval()
    with torch.compiler.set_stance("force_eager"):
        print(f"  held-out stories: loss {evaluate.story_loss(model, tokenizer):.3f}", flush=True)
        for length in sorted(set(lengths)):
            whole, depths, kinds = evaluate.recall(model, tokenizer, length, max(8, 32768 // length) * (4 if full else 1))
            print(f"  recall at {length}: {whole:.3f}  by tenth {list(depths.values())}", flush=True)
        print(f"  by kind {kinds}", flush=True)
        short = "The door code of the old mill is 4817. The door code of the old barn is 2265. The tall mill belongs to Ada."
        for question in ("Which code opens the door of the old mill?", "Who owns the tall mill?"):
            prompt = [BEGIN, USER, *tokenizer.encode(f"{short}\n\n{question}"), END, ASSISTANT]
            print(f"  {question} {evaluate.sample(model, tokenizer, prompt, 8, 0.01)!r}", flush=True)
        if full:
            for i, prompt in enumerate(([BEGIN], [BEGIN, USER, *tokenizer.encode("Tell me a story about a lost key."), END, ASSISTANT])):
                print(f"  sample: {evaluate.sample(model, tokenizer, prompt, seed=i)!r}", flush=True)
    model.train()


def save(model, path):
    torch.save({name: value.half() for name, value in model.state_dict().items()}, f"{path}.part")
    os.replace(f"{path}.part", path)


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    merges = args.out / "merges.json"
    if not merges.exists():
        Tokenizer.train().save(merges)
    tokenizer = Tokenizer.load(merges)

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heads = args.width // 64
    model = Model(Config(layers=args.layers, width=args.width, heads=heads, kv_heads=max(1, heads // 2))).to(device)
    if args.start:
        model.load_state_dict(torch.load(args.start, map_location=device, weights_only=True))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {args}", flush=True)
    matrices = [p for p in model.blk.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    muon = Muon(matrices, args.lr)
    adam = torch.optim.AdamW(others, lr=args.lr / 10, betas=(0.9, 0.95), weight_decay=0, fused=device == "cuda")
    loss_of = weighted_loss
    if not args.no_compile:
        for block in model.blk:
            block.compile(dynamic=False)
        loss_of = torch.compile(weighted_loss, dynamic=False)

    stages = list(stages_of(args.plan))
    total = sum(tokens for _, tokens in stages)
    done, step, started = 0, 0, time.time()
    next_eval, since, since_done, waited = started + args.eval_seconds, started, 0, 0
    for index, (lengths, millions) in enumerate(stages):
        print(f"stage {index}: rows of {lengths}, {millions / 1e6:.0f} M tokens", flush=True)
        batches, end = batches_of(args, tokenizer, index, lengths), done + millions
        while done < end:
            requested = time.time()
            tokens, weights = (part.to(device, non_blocking=True) for part in next(batches))
            waited += time.time() - requested
            tokens = tokens.long()
            x = model(tokens[:, :-1])
            loss = loss_of(x, model.token_embd, tokens[:, 1:], weights[:, 1:])
            loss.backward()
            factor = min(1, (step + 1) / 100, (1 - done / total) / args.decay_share)
            torch.nn.utils.clip_grad_norm_(others, 1.0)
            for group in adam.param_groups:
                group["lr"] = args.lr / 10 * factor
            muon.step(factor)
            adam.step()
            model.zero_grad(set_to_none=True)
            done, step = done + tokens[:, 1:].numel(), step + 1
            if step % 50 == 0:
                now = time.time()
                speed, since, since_done = (done - since_done) / (now - since) / 1e6, now, done
                print(f"{now - started:6.0f} s  step {step}  {done / 1e6:.0f} M  loss {loss.item():.3f}  {speed:.2f} M/s, waited {waited:.1f} s", flush=True)
                waited = 0
                if now > next_eval:
                    report(model, tokenizer, lengths)
                    save(model, args.out / "mimir.pt")
                    next_eval, since = time.time() + args.eval_seconds, time.time()
    save(model, args.out / "mimir.pt")
    print(f"trained: {step} steps, {done / 1e6:.0f} M tokens, {time.time() - started:.0f} s", flush=True)
    report(model, tokenizer, [512, 2048, 4096, 8192], full=True)
    if args.documents:
        with torch.compiler.set_stance("force_eager"):
            results = evaluate.documents(model, tokenizer, args.documents)
        depths = evaluate.accuracy_by(results, lambda item: min(9, int(item[1] * 10)))
        print(f"documents: {evaluate.accuracy(results):.4f} of {len(results)}, by tenth {depths}", flush=True)
        print(f"  by kind {evaluate.accuracy_by(results, lambda item: item[2])}", flush=True)


if __name__ == "__main__":
    main()
