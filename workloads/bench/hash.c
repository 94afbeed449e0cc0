/* SHA-256 and SipHash-2-4, written from their definitions, over a buffer of SIZE times 64 KiB. */
#include "common.h"

enum { BUFFER = 1 << 16 };

/* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
static const uint32_t ROUND_CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate32(uint32_t value, int by) { return value >> by | value << (32 - by); }
static uint64_t rotate64(uint64_t value, int by) { return value << by | value >> (64 - by); }

static void sha256_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate32(w[i - 15], 7) ^ rotate32(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate32(w[i - 2], 17) ^ rotate32(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = rotate32(s[4], 6) ^ rotate32(s[4], 11) ^ rotate32(s[4], 25), choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t first = s[7] + e + choice + ROUND_CONSTANTS[i] + w[i];
        uint32_t a = rotate32(s[0], 2) ^ rotate32(s[0], 13) ^ rotate32(s[0], 22);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += first;
        s[0] = first + a + majority;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

/* Of `repeats` times a buffer whose length is a multiple of 64. */
static void sha256(const unsigned char *buffer, size_t length, long repeats, uint32_t state[8])
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(state, start, sizeof start);
    for (long i = 0; i < repeats; i++)
        for (size_t at = 0; at < length; at += 64)
            sha256_block(state, buffer + at);
    unsigned char last[64] = {0x80};
    uint64_t bits = (uint64_t)length * (uint64_t)repeats * 8;
    for (int i = 0; i < 8; i++)
        last[63 - i] = (unsigned char)(bits >> (8 * i));
    sha256_block(state, last);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotate64(v[1], 13) ^ v[0], v[0] = rotate64(v[0], 32);
    v[2] += v[3], v[3] = rotate64(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate64(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate64(v[1], 17) ^ v[2], v[2] = rotate64(v[2], 32);
}

/* Of a buffer of any length. */
static uint64_t siphash(const unsigned char *buffer, size_t length, uint64_t key0, uint64_t key1)
{
    uint64_t v[4] = {key0 ^ 0x736f6d6570736575u, key1 ^ 0x646f72616e646f6du, key0 ^ 0x6c7967656e657261u,
                     key1 ^ 0x7465646279746573u};
    for (size_t at = 0; at <= length; at += 8) {
        uint64_t word = 0;
        size_t left = length - at < 8 ? length - at : 8;
        memcpy(&word, buffer + at, left);
        if (left < 8)
            word |= (uint64_t)length << 56;
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
        if (left < 8)
            break;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

int main(int argc, char **argv)
{
    long size = parse_size(argc, argv, "pieces of 64 KiB", 400, 1000000);
    unsigned char *buffer = allocate(BUFFER);
    uint64_t random = 1;
    for (size_t i = 0; i < BUFFER; i++)
        buffer[i] = (unsigned char)(next_random(&random) >> 56);

    /* The standards' own examples. */
    uint32_t state[8];
    sha256(buffer, 0, 0, state);
    int good = state[0] == 0xe3b0c442 && state[7] == 0x7852b855;
    unsigned char example[15];
    for (unsigned char i = 0; i < 15; i++)
        example[i] = i;
    good &= siphash(example, 15, 0x0706050403020100u, 0x0f0e0d0c0b0a0908u) == 0xa129ca6149be45e5u;

    sha256(buffer, BUFFER, size, state);
    uint64_t sip = 0;
    for (long i = 0; i < 2 * size; i++)
        sip = siphash(buffer, BUFFER, sip, (uint64_t)i);
    printf("hash: sha256 %08x%08x..., siphash %016llx, %s\n", state[0], state[1], (unsigned long long)sip,
           good ? "examples agree" : "WRONG");
    return good ? 0 : 1;
}
