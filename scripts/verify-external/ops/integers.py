"""Bits and truth values. Unsigned words are 64-bit integers in PyTorch, cut to 32 bits."""

import torch

from torch_cases import i32, u32

WORD = 2**32 - 1


def bits(c):
    words = lambda *shape: u32(c.rng.integers(2**32, size=shape))
    signed = lambda *shape: i32(c.rng.integers(-(2**31), 2**31, size=shape))
    rows = [
        ("core.bit_and", torch.bitwise_and),
        ("core.bit_or", torch.bitwise_or),
        ("core.bit_xor", torch.bitwise_xor),
    ]
    for op, function in rows:
        c.add("words", op, function, words(3, 5), words(3, 5))
        c.add("broadcast", op, function, words(2, 1, 3), words(5, 1))
        c.add("signed", op, function, signed(7), signed(7))
    c.add("words", "core.bit_not", lambda x: ~x & WORD, words(3, 5))
    c.add("signed", "core.bit_not", torch.bitwise_not, signed(7))
    by = u32([0, 1, 7, 16, 31, 32, 39])
    c.add("to the end and beyond", "core.shift_left", lambda a, b: (a << b) & WORD, words(3, 7), by)
    c.add("to the end and beyond", "core.shift_right", lambda a, b: a >> b, words(3, 7), by)


def truth(c):
    small = lambda *shape: c.ids(3, *shape)
    rows = [
        ("core.logical_and", torch.logical_and),
        ("core.logical_or", torch.logical_or),
        ("core.logical_xor", torch.logical_xor),
    ]
    for op, function in rows:
        c.add("masks", op, function, c.mask(3, 5), c.mask(3, 5))
        c.add("larger numbers, broadcast", op, function, small(4, 1), small(2, 1, 7))
    c.add("larger numbers", "core.logical_not", torch.logical_not, small(3, 5))


def cases(c):
    bits(c)
    truth(c)
