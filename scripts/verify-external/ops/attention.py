"""Attention, with and without a cache, rotary positions and gated activations."""

import math

import torch
import torch.nn.functional as F

from torch_cases import f32


def split_heads(x, heads):
    """[batch..., rows, heads * width] to [batch..., heads, rows, width]."""
    return x.reshape(*x.shape[:-1], heads, -1).transpose(-2, -3)


def mask_of(rows_q, rows_k, causal, window):
    """Which keys each query sees. The last query is aligned with the last key."""
    position = torch.arange(rows_q)[:, None] + rows_k - rows_q
    key = torch.arange(rows_k)[None, :]
    seen = torch.ones(rows_q, rows_k, dtype=torch.bool)
    if causal:
        seen &= key <= position
    if window:
        seen &= key > position - window
    return seen


def attention(attrs):
    heads, kv_heads = attrs["num_heads"], attrs["num_kv_heads"]

    def function(q, k, v):
        q = split_heads(q, heads)
        k, v = (split_heads(x, kv_heads).repeat_interleave(heads // kv_heads, dim=-3) for x in (k, v))
        mask = mask_of(q.shape[-2], k.shape[-2], attrs["causal"], attrs["window"])
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=attrs["scale"])
        scores = attrs["scale"] * q @ k.transpose(-1, -2)
        lse = torch.logsumexp(scores.masked_fill(~mask, -math.inf), -1)
        return out.transpose(-2, -3).flatten(-2), lse

    return function


def attentions(c):
    # Batch, rows of queries and keys, heads, key-value heads, width of a head, and what is not the default.
    rows = [
        ("one head", (), 5, 5, 1, 1, 3, {}),
        ("causal", (), 7, 7, 2, 2, 4, {"causal": True}),
        ("causal, one row", (), 1, 1, 2, 1, 4, {"causal": True}),
        ("batch", (2,), 3, 3, 3, 3, 2, {"causal": True}),
        ("two batch axes, full", (2, 1), 3, 3, 2, 2, 2, {}),
        ("cross", (2,), 3, 7, 2, 2, 4, {}),
        ("cross with more queries", (), 5, 2, 1, 1, 4, {}),
        ("queries at the end of the keys", (), 3, 7, 2, 2, 4, {"causal": True}),
        ("grouped", (), 5, 5, 4, 2, 2, {"causal": True}),
        ("one key-value head", (2,), 3, 5, 3, 1, 4, {}),
        ("window", (), 11, 11, 2, 2, 2, {"causal": True, "window": 3}),
        ("window of one", (), 5, 5, 1, 1, 2, {"causal": True, "window": 1}),
        ("window at the end of the keys, grouped", (), 4, 9, 4, 2, 2, {"causal": True, "window": 4}),
        ("window larger than the rows", (), 3, 3, 1, 1, 2, {"causal": True, "window": 9}),
        ("another scale", (), 5, 5, 2, 2, 3, {"scale": 0.0625}),
    ]
    for label, batch, rows_q, rows_k, heads, kv_heads, width, changed in rows:
        attrs = {
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": width,
            "causal": False,
            "window": 0,
            "scale": 1.0 / math.sqrt(width),
        } | changed
        q = c.grid(*batch, rows_q, heads * width)
        k, v = (c.grid(*batch, rows_k, kv_heads * width) for _ in range(2))
        c.add(label, "core.attention", attention(attrs), q, k, v, attrs=attrs, rounded=True)
    attrs = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 2, "causal": False, "window": 0, "scale": 1.0}
    far = c.grid(3, 2, low=-30.0, high=30.0)
    c.add("scores far apart", "core.attention", attention(attrs), far, c.grid(4, 2), c.grid(4, 2), attrs=attrs, rounded=True)


def rope(theta, offset, head_dim, inverse):
    """Element i of a head and element i + head_dim / 2 are a point of the plane that is turned."""

    def function(x):
        half = head_dim // 2
        speed = theta ** (-2.0 * torch.arange(half, dtype=torch.float64) / head_dim)
        position = torch.arange(x.shape[-2], dtype=torch.float64) + offset
        turn = torch.polar(torch.ones((), dtype=torch.float64), position[:, None, None] * speed)
        heads = x.reshape(*x.shape[:-1], -1, head_dim)
        turned = torch.complex(heads[..., :half], heads[..., half:]) * (turn.conj() if inverse else turn)
        return torch.cat([turned.real, turned.imag], -1).reshape(x.shape)

    return function


def ropes(c):
    rows = [
        ("one head", (5, 4), 4, 10000.0, 0, False),
        ("three heads, batch", (2, 7, 18), 6, 10000.0, 0, False),
        ("offset", (3, 8), 4, 500000.0, 13, False),
        ("far offset", (2, 8), 8, 10000.0, 2000, False),
        ("inverse", (2, 1, 5, 4), 2, 100.0, 1, True),
    ]
    for label, shape, head_dim, theta, offset, inverse in rows:
        attrs = {"theta": theta, "offset": offset, "head_dim": head_dim, "inverse": inverse}
        c.add(label, "core.rope", rope(**attrs), c.grid(*shape), attrs=attrs, rounded=True)


def cached(attrs):
    """Row r of sequence s sees rows up to position[s] + r of its cache."""
    heads, kv_heads, window = attrs["num_heads"], attrs["num_kv_heads"], attrs["window"]

    def function(q, k, v, position):
        q = split_heads(q, heads)
        k, v = (split_heads(x, kv_heads).repeat_interleave(heads // kv_heads, dim=-3) for x in (k, v))
        position = position.reshape(*q.shape[:-3], 1, 1, 1) + torch.arange(q.shape[-2])[:, None]
        key = torch.arange(k.shape[-2])
        mask = key <= position
        if window:
            mask = mask & (key > position - window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=attrs["scale"])
        return out.transpose(-2, -3).flatten(-2)

    return function


def write_cache(new, cache, position):
    """Rows of each sequence from its position on."""
    out = cache.clone()
    flat = out.reshape(-1, *cache.shape[-2:])
    for s, (rows, first) in enumerate(zip(new.reshape(-1, *new.shape[-2:]), position.flatten())):
        flat[s, first : first + len(rows)] = rows
    return flat.reshape(cache.shape)


def caches(c):
    # Batch, rows of queries, capacity, heads, key-value heads, width of a head, and a window.
    rows = [
        ("one row", (), 1, 7, 2, 2, 4, 0),
        ("grouped, some rows", (), 3, 9, 4, 2, 2, 0),
        ("batch", (3,), 1, 5, 2, 1, 4, 0),
        ("window", (2,), 2, 9, 1, 1, 3, 3),
    ]
    for label, batch, count, capacity, heads, kv_heads, width, window in rows:
        attrs = {
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": width,
            "window": window,
            "scale": 1.0 / math.sqrt(width),
        }
        q = c.grid(*batch, count, heads * width)
        k, v = (c.grid(*batch, capacity, kv_heads * width) for _ in range(2))
        position = c.ids(capacity + 1 - count, *(batch or (1,)))
        c.add(label, "core.cached_attention", cached(attrs), q, k, v, position, attrs=attrs, rounded=True)
    for label, batch, count, capacity, width in [("one row", (), 1, 4, 3), ("batch, two rows", (2,), 2, 5, 2)]:
        position = c.ids(capacity + 1 - count, *(batch or (1,)))
        operands = c.grid(*batch, count, width), c.grid(*batch, capacity, width), position
        c.add(label, "core.cache_write", write_cache, *operands, states=(1,))


def dynamic_ropes(c):
    plain = {"factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_context": 0}
    by_frequency = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 64}
    rows = [
        ("one sequence", (5, 4), 4, 10000.0, False, plain),
        ("batch", (3, 2, 12), 6, 10000.0, False, plain),
        ("inverse", (2, 3, 4), 4, 500000.0, True, plain),
        ("factor", (2, 8), 8, 10000.0, False, plain | {"factor": 4.0}),
        ("factor by frequency", (3, 16), 16, 10000.0, False, by_frequency),
    ]
    for label, shape, head_dim, theta, inverse, scaling in rows:
        attrs = {"theta": theta, "head_dim": head_dim, "inverse": inverse} | scaling
        offsets = c.ids(3000, *(shape[:-2] or (1,)))
        c.add(label, "core.rope_dynamic_offset", dynamic_rope(attrs), c.grid(*shape), offsets, attrs=attrs, rounded=True)


def dynamic_rope(attrs):
    head_dim, factor, context = attrs["head_dim"], attrs["factor"], attrs["original_context"]

    def function(x, offsets):
        half = head_dim // 2
        speed = attrs["theta"] ** (-2.0 * torch.arange(half, dtype=torch.float64) / head_dim)
        if context:
            low, high = attrs["low_freq_factor"], attrs["high_freq_factor"]
            kept = ((context * speed / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
            speed = (1 - kept) * speed / factor + kept * speed
        else:
            speed = speed / factor
        position = torch.arange(x.shape[-2]) + offsets.reshape(*x.shape[:-2], 1)
        turn = torch.polar(torch.ones((), dtype=torch.float64), position[..., None, None].double() * speed)
        heads = x.reshape(*x.shape[:-1], -1, head_dim)
        turned = torch.complex(heads[..., :half], heads[..., half:]) * (turn.conj() if attrs["inverse"] else turn)
        return torch.cat([turned.real, turned.imag], -1).reshape(x.shape)

    return function


def gates(c):
    swiglu = lambda gate, up: F.silu(gate) * up
    geglu = lambda gate, up: F.gelu(gate) * up
    packed = lambda x: swiglu(*x.chunk(2, dim=-1))
    wide = {"low": -6.0, "high": 6.0}
    for shape in [(3, 5), (2, 3, 7), (1,)]:
        c.add(f"{list(shape)}", "core.swiglu", swiglu, c.grid(*shape, **wide), c.grid(*shape))
        c.add(f"{list(shape)}", "core.geglu", geglu, c.grid(*shape, **wide), c.grid(*shape), rounded=True)
    for shape in [(3, 10), (2, 3, 2), (14,)]:
        c.add(f"{list(shape)}", "core.swiglu_concat", packed, c.grid(*shape, **wide))


def cases(c):
    attentions(c)
    ropes(c)
    gates(c)
    caches(c)
    dynamic_ropes(c)
