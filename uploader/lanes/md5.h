/* One kernel of MD5 (RFC 1321): the 64 steps of a block in VECTORS * WIDTH lanes. lanes.c includes this file for each kernel. */

#ifndef TARGET
#define TARGET
#endif

#ifndef MD5_H
#define MD5_H
typedef uint32_t words4 __attribute__((vector_size(16)));
typedef uint32_t words8 __attribute__((vector_size(32)));
typedef uint32_t words16 __attribute__((vector_size(64)));
typedef words4 unaligned4 __attribute__((aligned(1), may_alias));

#define LOAD4(lane) (*(const unaligned4 *)(block[(lane)] + quarter))
#define LOAD8(lane) __builtin_shufflevector(LOAD4(lane), LOAD4((lane) + 4), 0, 1, 2, 3, 4, 5, 6, 7)
#define LOAD16(lane) \
    __builtin_shufflevector(LOAD8(lane), LOAD8((lane) + 8), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)

/* Pick the same four words from each group of four. Numbers from WIDTH on mean the second vector. */
#define FOUR_(from, a, b, c, d) (a) + (from), (b) + (from), (c) + (from), (d) + (from)
#define PICK4(one, other, ...) __builtin_shufflevector(one, other, FOUR_(0, __VA_ARGS__))
#define PICK8(one, other, ...) __builtin_shufflevector(one, other, FOUR_(0, __VA_ARGS__), FOUR_(4, __VA_ARGS__))
#define PICK16(one, other, ...) \
    __builtin_shufflevector(one, other, FOUR_(0, __VA_ARGS__), FOUR_(4, __VA_ARGS__), \
                            FOUR_(8, __VA_ARGS__), FOUR_(12, __VA_ARGS__))
/* Words of both vectors from n on: alternating (ZIP), or two and two (PAIR). */
#define ZIP(one, other, n) JOIN(PICK, WIDTH)(one, other, n, WIDTH + (n), (n) + 1, WIDTH + (n) + 1)
#define PAIR(one, other, n) JOIN(PICK, WIDTH)(one, other, n, (n) + 1, WIDTH + (n), WIDTH + (n) + 1)

#define F(b, c, d) (d ^ (b & (c ^ d)))
#define G(b, c, d) (b & d)
#define H(b, c, d) (b ^ (c ^ d))
#define I(b, c, d) (c ^ (b | ~d))
/* The part of a function that does not wait for b. The rest of G is b & d, without common bits. */
#define EARLY_F(c, d) 0
#define EARLY_G(c, d) (c & ~d)
#define EARLY_H(c, d) 0
#define EARLY_I(c, d) 0
#ifdef __x86_64__
#define REGISTER(vector) "+v"(vector)
#else
#define REGISTER(vector) "+w"(vector)
#endif
#define STEP(f, a, b, c, d, word, constant, turn) \
    for (int v = 0; v < VECTORS; v++) { \
        VECTOR sum = a[v] + m[v][word] + (uint32_t)constant + EARLY_##f(c[v], d[v]); \
        __asm__("" : REGISTER(sum)); /* keeps compilers from adding it later */ \
        sum += f(b[v], c[v], d[v]); \
        a[v] = (sum << turn | sum >> (32 - turn)) + b[v]; \
    }
#define STEPS(f, w1, k1, s1, w2, k2, s2, w3, k3, s3, w4, k4, s4) \
    STEP(f, a, b, c, d, w1, k1, s1) STEP(f, d, a, b, c, w2, k2, s2) \
    STEP(f, c, d, a, b, w3, k3, s3) STEP(f, b, c, d, a, w4, k4, s4)
#endif

#define VECTOR JOIN(words, WIDTH)

TARGET static void NAME(struct lanes *lanes, size_t blocks)
{
    VECTOR a[VECTORS], b[VECTORS], c[VECTORS], d[VECTORS], m[VECTORS][16];
    const uint8_t *block[VECTORS * WIDTH];
    VECTOR(*words)[MOST_LANES / WIDTH] = (void *)lanes->words;

    for (int v = 0; v < VECTORS; v++)
        a[v] = words[0][v], b[v] = words[1][v], c[v] = words[2][v], d[v] = words[3][v];
    for (int lane = 0; lane < VECTORS * WIDTH; lane++)
        block[lane] = lanes->block[lane];
    while (blocks--) {
        VECTOR a0[VECTORS], b0[VECTORS], c0[VECTORS], d0[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            for (int word = 0; word < 16; word += 4) {
                /* Rows of lanes become rows of words. */
                int quarter = 4 * word, first = v * WIDTH;
                VECTOR r0 = JOIN(LOAD, WIDTH)(first), r1 = JOIN(LOAD, WIDTH)(first + 1);
                VECTOR r2 = JOIN(LOAD, WIDTH)(first + 2), r3 = JOIN(LOAD, WIDTH)(first + 3);
                VECTOR low01 = ZIP(r0, r1, 0), low23 = ZIP(r2, r3, 0);
                VECTOR high01 = ZIP(r0, r1, 2), high23 = ZIP(r2, r3, 2);
                m[v][word] = PAIR(low01, low23, 0);
                m[v][word + 1] = PAIR(low01, low23, 2);
                m[v][word + 2] = PAIR(high01, high23, 0);
                m[v][word + 3] = PAIR(high01, high23, 2);
            }
            a0[v] = a[v], b0[v] = b[v], c0[v] = c[v], d0[v] = d[v];
        }
        for (int lane = 0; lane < VECTORS * WIDTH; lane++)
            block[lane] += lanes->stride[lane];
        STEPS(F, 0, 0xd76aa478, 7, 1, 0xe8c7b756, 12, 2, 0x242070db, 17, 3, 0xc1bdceee, 22)
        STEPS(F, 4, 0xf57c0faf, 7, 5, 0x4787c62a, 12, 6, 0xa8304613, 17, 7, 0xfd469501, 22)
        STEPS(F, 8, 0x698098d8, 7, 9, 0x8b44f7af, 12, 10, 0xffff5bb1, 17, 11, 0x895cd7be, 22)
        STEPS(F, 12, 0x6b901122, 7, 13, 0xfd987193, 12, 14, 0xa679438e, 17, 15, 0x49b40821, 22)
        STEPS(G, 1, 0xf61e2562, 5, 6, 0xc040b340, 9, 11, 0x265e5a51, 14, 0, 0xe9b6c7aa, 20)
        STEPS(G, 5, 0xd62f105d, 5, 10, 0x02441453, 9, 15, 0xd8a1e681, 14, 4, 0xe7d3fbc8, 20)
        STEPS(G, 9, 0x21e1cde6, 5, 14, 0xc33707d6, 9, 3, 0xf4d50d87, 14, 8, 0x455a14ed, 20)
        STEPS(G, 13, 0xa9e3e905, 5, 2, 0xfcefa3f8, 9, 7, 0x676f02d9, 14, 12, 0x8d2a4c8a, 20)
        STEPS(H, 5, 0xfffa3942, 4, 8, 0x8771f681, 11, 11, 0x6d9d6122, 16, 14, 0xfde5380c, 23)
        STEPS(H, 1, 0xa4beea44, 4, 4, 0x4bdecfa9, 11, 7, 0xf6bb4b60, 16, 10, 0xbebfbc70, 23)
        STEPS(H, 13, 0x289b7ec6, 4, 0, 0xeaa127fa, 11, 3, 0xd4ef3085, 16, 6, 0x04881d05, 23)
        STEPS(H, 9, 0xd9d4d039, 4, 12, 0xe6db99e5, 11, 15, 0x1fa27cf8, 16, 2, 0xc4ac5665, 23)
        STEPS(I, 0, 0xf4292244, 6, 7, 0x432aff97, 10, 14, 0xab9423a7, 15, 5, 0xfc93a039, 21)
        STEPS(I, 12, 0x655b59c3, 6, 3, 0x8f0ccc92, 10, 10, 0xffeff47d, 15, 1, 0x85845dd1, 21)
        STEPS(I, 8, 0x6fa87e4f, 6, 15, 0xfe2ce6e0, 10, 6, 0xa3014314, 15, 13, 0x4e0811a1, 21)
        STEPS(I, 4, 0xf7537e82, 6, 11, 0xbd3af235, 10, 2, 0x2ad7d2bb, 15, 9, 0xeb86d391, 21)
        for (int v = 0; v < VECTORS; v++)
            a[v] += a0[v], b[v] += b0[v], c[v] += c0[v], d[v] += d0[v];
    }
    for (int v = 0; v < VECTORS; v++)
        words[0][v] = a[v], words[1][v] = b[v], words[2][v] = c[v], words[3][v] = d[v];
    for (int lane = 0; lane < VECTORS * WIDTH; lane++)
        lanes->block[lane] = block[lane];
}

#undef VECTOR
#undef VECTORS
#undef WIDTH
#undef NAME
#undef TARGET
