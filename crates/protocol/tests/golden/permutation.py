"""Golden vectors of the permutation, from its description alone (see src/permutation.rs).

Run: python3 permutation.py > permutation.txt
Each line: blocks short_last seed epoch check_value first_blocks...
"""

M = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def split_mix(state):
    state = (state + GOLDEN) & M
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return state, z ^ (z >> 31)


def rotl(x, k):
    return ((x << k) | (x >> (64 - k))) & M


def xoshiro(seed, epoch):
    state, s = (seed + epoch * GOLDEN) & M, []
    for _ in range(4):
        state, out = split_mix(state)
        s.append(out)
    while True:
        yield (rotl((s[1] * 5) & M, 7) * 9) & M
        t = (s[1] << 17) & M
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)


def permutation(blocks, short_last, seed, epoch):
    outputs = xoshiro(seed, epoch)
    order = list(range(blocks))
    full = blocks - (1 if short_last and blocks else 0)
    for i in range(full - 1, 0, -1):
        bits = i.bit_length()
        while True:
            j = next(outputs) & ((1 << bits) - 1)
            if j <= i:
                break
        order[i], order[j] = order[j], order[i]
    return order


def check_value(order):
    h = 0xCBF29CE484222325
    for block in order:
        for byte in block.to_bytes(4, "little"):
            h = ((h ^ byte) * 0x100000001B3) & M
    return h


if __name__ == "__main__":
    for blocks in (0, 1, 2, 3, 7, 64, 65, 1000, 100_000):
        for short in (0, 1):
            for seed, epoch in ((0, 0), (42, 0), (42, 1), (2**64 - 1, 3)):
                order = permutation(blocks, short, seed, epoch)
                print(blocks, short, seed, epoch, check_value(order), *order[:12])
