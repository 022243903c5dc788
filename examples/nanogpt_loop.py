"""nanoGPT's training loop, in its own style, on lowtide's get_batch: flat memory for a corpus of any size.

    python examples/nanogpt_loop.py
    python examples/nanogpt_loop.py --data_dir=data/openwebtext --vocab_size=50304 --max_iters=100000

Without `data_dir`, a folder with nanoGPT's train.bin and val.bin, it makes one of Python's own library. In
nanoGPT itself the import and the call of `get_batch_for` are all that is needed: for the same
torch.manual_seed they give the same batches as its own get_batch, bit for bit.
"""

import atexit
import math
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch

import lowtide
from lowtide.gpt import ARCHITECTURES, GPT, ModelConfig
from lowtide.memory import snapshot
from lowtide.nanogpt import get_batch_for

# the data
data_dir = ""  # "" makes a small corpus, of bytes
vocab_size = 257  # 256 bytes and the end of text
# the model: tiny, so that a CPU learns something within seconds
n_layer, n_head, n_embd = 2, 4, 64
block_size, dropout = 64, 0.0
# training
batch_size = 16
gradient_accumulation_steps = 1
max_iters = 200
learning_rate, min_lr = 3e-3, 3e-4  # small models like large rates
warmup_iters = 20
weight_decay, beta1, beta2, grad_clip = 0.1, 0.9, 0.95, 1.0
eval_interval, eval_iters = 100, 10
seed = 1337
device = "cuda" if torch.cuda.is_available() else "cpu"

for argument in sys.argv[1:]:  # --name=value for any of the names above
    name, value = argument.removeprefix("--").split("=", 1)
    globals()[name] = type(globals()[name])(value)

torch.manual_seed(seed)
made_here = not data_dir
if made_here:
    data_dir = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, data_dir)
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    lowtide.prepare(library, data_dir, tokenizer="byte", layout="nanogpt", val_fraction=0.05)

# in the place of nanoGPT's function of this name
get_batch = get_batch_for(data_dir, block_size, batch_size, device)

sizes = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "length": block_size}
model = GPT(ModelConfig(vocab_size=vocab_size, dropout=dropout, **sizes, **ARCHITECTURES["nanogpt"])).to(
    device
)
matrices = [p for p in model.parameters() if p.dim() >= 2]  # biases and norms do not decay
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(beta1, beta2),
)


@torch.no_grad()
def estimate_loss():
    """The mean over many batches: the loss of a single one says little."""
    model.eval()
    losses = {
        split: sum(model(*get_batch(split))[1].item() for _ in range(eval_iters)) / eval_iters
        for split in ("train", "val")
    }
    model.train()
    return losses


def get_lr(it):
    """Up in a line, then down as half a cosine."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    gone = min(1.0, (it - warmup_iters) / (max_iters - warmup_iters))
    return min_lr + 0.5 * (1 + math.cos(math.pi * gone)) * (learning_rate - min_lr)


first = last = None
resident = []
X, Y = get_batch("train")
started = time.perf_counter()
for iter_num in range(max_iters + 1):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        last = estimate_loss()
        first = first or last
        resident.append(snapshot().rss)
        print(
            f"step {iter_num}: train loss {last['train']:.3f}, val loss {last['val']:.3f}, "
            f"{time.perf_counter() - started:.1f} s, memory {resident[-1] / 2**20:.1f} MiB"
        )
    for _ in range(gradient_accumulation_steps):
        _, loss = model(X, Y)
        X, Y = get_batch("train")  # the next batch is read while a GPU is still at work on this one
        (loss / gradient_accumulation_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

if made_here:
    assert last["val"] < first["val"] - 1, "it has learned something"
    assert resident[-1] < resident[1] + 32 * 2**20, "and memory stayed where it was after the first steps"
