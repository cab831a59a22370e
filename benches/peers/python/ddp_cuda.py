"""Data-parallel training by PyTorch (DistributedDataParallel over NCCL), beside `meganeura train text --distributed nccl`.

    python ddp_cuda.py checkpoint DIR [--small]    # writes a model of SmolLM2-135M's shape with random weights, and a tokenizer
    torchrun --nproc-per-node 2 ddp_cuda.py train DIR --data FILE --batch 8 --seq 512 --steps 40
    torchrun --nproc-per-node 2 ddp_cuda.py all-reduce

Prints a line of JSON for each figure. Needs torch, transformers and tokenizers.
"""

import argparse
import json
import os
import time
from pathlib import Path

# SmolLM2-135M's shape, as its config.json has it.
SHAPE = dict(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=49152,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    tie_word_embeddings=True,
)
SMALL = dict(SHAPE, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=3,
             vocab_size=2048)


def checkpoint(folder, data, small):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    folder = Path(folder)
    LlamaForCausalLM(LlamaConfig(**(SMALL if small else SHAPE))).float().save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train([data], trainers.BpeTrainer(vocab_size=1024, initial_alphabet=alphabet, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))


def join():
    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    return torch.device("cuda", local), dist.get_rank(), dist.get_world_size()


def train(folder, data, batch, seq, steps, precision):
    import torch
    from tokenizers import Tokenizer
    from torch.nn.parallel import DistributedDataParallel
    from transformers import LlamaForCausalLM

    device, rank, size = join()
    torch.backends.cuda.matmul.allow_tf32 = False
    model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="sdpa").float().to(device)
    model.train()
    tokens = Tokenizer.from_file(str(Path(folder) / "tokenizer.json")).encode(Path(data).read_text()).ids
    examples = torch.tensor(tokens[: len(tokens) // (seq + 1) * (seq + 1)], dtype=torch.long).view(-1, seq + 1)
    parallel = DistributedDataParallel(model, device_ids=[device.index], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    half = precision == "mixed"

    def loss_of(inputs, targets):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            logits = parallel(inputs, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    compiled = torch.compile(loss_of)
    times = []
    for step in range(steps):
        rows = [(step * batch * size + rank * batch + i) % len(examples) for i in range(batch)]
        chosen = examples[rows].to(device)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loss = compiled(chosen[:, :-1], chosen[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    times = sorted(times[steps // 2:])
    if rank == 0:
        median = times[len(times) // 2]
        print(json.dumps({"pytorch": torch.__version__, "ranks": size, "precision": precision, "ms": 1e3 * median,
                          "tokens_per_second": batch * size * seq / median, "loss": loss.item()}), flush=True)
    torch.distributed.destroy_process_group()


def all_reduce():
    import torch
    import torch.distributed as dist

    device, rank, size = join()
    for mebibytes in (1, 16, 64, 256, 1024):
        data = torch.full((mebibytes << 18,), float(rank), device=device)
        dist.all_reduce(data, op=dist.ReduceOp.AVG)
        torch.cuda.synchronize()
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(20):
            dist.all_reduce(data, op=dist.ReduceOp.AVG)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begun) / 20
        if rank == 0:
            algorithm = data.numel() * 4 / seconds / 1e9
            print(json.dumps({"pytorch_all_reduce_mib": mebibytes, "ranks": size, "milliseconds": round(1e3 * seconds, 3),
                              "algorithm": round(algorithm, 1), "bus": round(algorithm * 2 * (size - 1) / size, 1)}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("checkpoint")
    made.add_argument("folder")
    made.add_argument("--data", required=True)
    made.add_argument("--small", action="store_true")
    trained = commands.add_parser("train")
    trained.add_argument("folder")
    trained.add_argument("--data", required=True)
    trained.add_argument("--batch", type=int, default=8)
    trained.add_argument("--seq", type=int, default=512)
    trained.add_argument("--steps", type=int, default=40)
    trained.add_argument("--precision", choices=["f32", "mixed"], default="mixed")
    commands.add_parser("all-reduce")
    options = parser.parse_args()
    if options.command == "checkpoint":
        checkpoint(options.folder, options.data, options.small)
    elif options.command == "train":
        train(options.folder, options.data, options.batch, options.seq, options.steps, options.precision)
    else:
        all_reduce()


if __name__ == "__main__":
    main()
