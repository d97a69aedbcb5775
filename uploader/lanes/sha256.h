/* One kernel of SHA-256 (FIPS 180-4), by the processor's own instructions: the 64 rounds of a block of LANES contents. The
   contents take turns, because each instruction waits for the one before. lanes.c includes this file for each kernel. */

#ifndef SHA256_H
#define SHA256_H
typedef int signed4 __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef bytes16 unaligned16 __attribute__((aligned(1), may_alias));

static const words4 constants[16] = {
    {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5}, {0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5},
    {0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3}, {0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174},
    {0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc}, {0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da},
    {0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7}, {0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967},
    {0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13}, {0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85},
    {0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3}, {0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070},
    {0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5}, {0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3},
    {0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208}, {0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2},
};

/* The words of a block are big-endian. */
#define SWAP(bytes) __builtin_shufflevector(bytes, bytes, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12)
#define ROUNDS(state, other, w) (words4)__builtin_ia32_sha256rnds2((signed4)(state), (signed4)(other), (signed4)(w))
#define FIRST(w, next) (words4)__builtin_ia32_sha256msg1((signed4)(w), (signed4)(next))
#define SECOND(w, last) (words4)__builtin_ia32_sha256msg2((signed4)(w), (signed4)(last))
#endif

__attribute__((target("sha,sse4.1"))) static void NAME(struct lanes *lanes, size_t blocks)
{
    /* The instructions take a state as the words f, e, b, a and h, g, d, c. */
    static const int order[2][4] = {{5, 4, 1, 0}, {7, 6, 3, 2}};
    words4 feba[LANES], hgdc[LANES];
    for (int i = 0; i < LANES; i++)
        for (int word = 0; word < 4; word++) {
            feba[i][word] = lanes->words[order[0][word]][i];
            hgdc[i][word] = lanes->words[order[1][word]][i];
        }
    while (blocks--) {
        words4 w[LANES][4], before[LANES][2];
        for (int i = 0; i < LANES; i++) {
            before[i][0] = feba[i];
            before[i][1] = hgdc[i];
#pragma GCC unroll 4
            for (int quarter = 0; quarter < 4; quarter++) {
                bytes16 bytes = *(const unaligned16 *)(lanes->block[i] + 16 * quarter);
                w[i][quarter] = (words4)SWAP(bytes);
            }
            lanes->block[i] += lanes->stride[i];
        }
#pragma GCC unroll 16
        for (int four = 0; four < 16; four++)
#pragma GCC unroll 2
            for (int i = 0; i < LANES; i++) {
                words4 *now = &w[i][four % 4], next = w[i][(four + 1) % 4], third = w[i][(four + 2) % 4], last = w[i][(four + 3) % 4];
                words4 sum = *now + constants[four];
                hgdc[i] = ROUNDS(hgdc[i], feba[i], sum);
                feba[i] = ROUNDS(feba[i], hgdc[i], __builtin_shufflevector(sum, sum, 2, 3, 0, 0));
                if (four < 12) /* replaced by the words needed four turns later */
                    *now = SECOND(FIRST(*now, next) + __builtin_shufflevector(third, last, 1, 2, 3, 4), last);
            }
        for (int i = 0; i < LANES; i++) {
            feba[i] += before[i][0];
            hgdc[i] += before[i][1];
        }
    }
    for (int i = 0; i < LANES; i++)
        for (int word = 0; word < 4; word++) {
            lanes->words[order[0][word]][i] = feba[i][word];
            lanes->words[order[1][word]][i] = hgdc[i][word];
        }
}

#undef LANES
#undef NAME
