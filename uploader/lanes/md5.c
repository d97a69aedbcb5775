/* Advances many MD5 states (RFC 1321) at once, each in a lane of the processor's vectors.

   One MD5 is serial: each step waits for the one before it, and most of the processor idles meanwhile. The steps of another
   content take no time beside them. States are OpenSSL's MD5_CTX, byte for byte (md5.h). Nothing is called, not even libc:
   the library goes with every Linux of its processor. */

#include <stddef.h>
#include <stdint.h>

#if !defined(__linux__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || !(defined(__x86_64__) || defined(__aarch64__))
#error "no lanes for this machine"
#endif

enum { BLOCK = 64, MOST_LANES = 16 };

struct context {
    uint32_t words[4];
    uint32_t bits_low, bits_high;
    uint8_t waiting[BLOCK]; /* of a block that is not full */
    uint32_t waiting_bytes;
};

struct piece {
    const uint8_t *bytes;
    size_t length;
};

/* A state, and what it is to be advanced by: `count` pieces. */
struct job {
    struct context *context;
    struct piece *pieces;
    size_t count;
};

/* Columns of words: one for each lane. Of each lane, where its next block is, and how far it is from there to the one after
   that: 0 for a lane that nobody uses. */
struct lanes {
    uint32_t words[4][MOST_LANES] __attribute__((aligned(64)));
    const uint8_t *block[MOST_LANES];
    size_t stride[MOST_LANES];
};

typedef void kernel(struct lanes *, size_t blocks);

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* WIDTH: words of a vector. VECTORS: so many take turns, because the processor has room for more than one. */
#define WIDTH 4
#define VECTORS 1
#define NAME baseline_4
#include "steps.h"
#define WIDTH 4
#define VECTORS 2
#define NAME baseline_8
#include "steps.h"
#ifdef __x86_64__
#define TARGET __attribute__((target("avx2")))
#define WIDTH 8
#define VECTORS 1
#define NAME avx2_8
#include "steps.h"
#define TARGET __attribute__((target("avx2")))
#define WIDTH 8
#define VECTORS 2
#define NAME avx2_16
#include "steps.h"
#define TARGET __attribute__((target("avx512f,avx512vl")))
#define WIDTH 8
#define VECTORS 1
#define NAME avx512_8
#include "steps.h"
#define TARGET __attribute__((target("avx512f,avx512vl")))
#define WIDTH 16
#define VECTORS 1
#define NAME avx512_16
#include "steps.h"
#endif

/* Two kernels of each kind, for half of its lanes and for all. The best kind comes first. */
static const struct kind {
    const char *name;
    size_t lanes;
    kernel *half, *whole;
} kinds[] = {
#ifdef __x86_64__
    {"avx512", 16, avx512_8, avx512_16},
    {"avx2", 16, avx2_8, avx2_16},
    {"sse2", 8, baseline_4, baseline_8},
#else
    {"neon", 8, baseline_4, baseline_8},
#endif
};

/* Of a kind: its name, or NULL after the last one. */
const char *uploader_md5_kind(size_t kind)
{
    return kind < sizeof kinds / sizeof kinds[0] ? kinds[kind].name : NULL;
}

/* How many lanes the processor has of a kind; 0 if it lacks it. */
size_t uploader_md5_lanes(size_t kind)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (kind == 0 && !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")))
        return 0;
    if (kind == 1 && !__builtin_cpu_supports("avx2"))
        return 0;
#endif
    return kinds[kind].lanes;
}

/* Finds the blocks of a job that are next, and lie side by side; returns how many, 0 at its end. */
static size_t next_blocks(struct job *job, const uint8_t **block)
{
    struct context *context = job->context;
    for (; job->count; job->pieces++, job->count--) {
        struct piece *piece = job->pieces;
        if (!context->waiting_bytes && piece->length >= BLOCK) {
            size_t blocks = piece->length / BLOCK;
            *block = piece->bytes;
            piece->bytes += blocks * BLOCK;
            piece->length %= BLOCK;
            return blocks;
        }
        while (piece->length) {
            context->waiting[context->waiting_bytes++] = *piece->bytes++;
            piece->length--;
            if (context->waiting_bytes == BLOCK) {
                context->waiting_bytes = 0;
                *block = context->waiting;
                return 1;
            }
        }
    }
    return 0;
}

/* Advances all jobs to their ends. */
void uploader_md5_update(size_t number, struct job *jobs, size_t count)
{
    static const uint8_t nothing[BLOCK];
    const struct kind *kind = &kinds[number];
    struct lanes lanes = {0};
    struct job *running[MOST_LANES];
    size_t left[MOST_LANES], used = 0;

    for (size_t i = 0; i < count; i++)
        for (size_t p = 0; p < jobs[i].count; p++) {
            struct context *context = jobs[i].context;
            uint64_t bits = (uint64_t)context->bits_high << 32 | context->bits_low;
            bits += (uint64_t)jobs[i].pieces[p].length << 3;
            context->bits_low = (uint32_t)bits;
            context->bits_high = (uint32_t)(bits >> 32);
        }
    for (;;) {
        for (; count && used < kind->lanes; jobs++, count--) {
            left[used] = next_blocks(jobs, &lanes.block[used]);
            if (!left[used])
                continue;
            for (int word = 0; word < 4; word++)
                lanes.words[word][used] = jobs->context->words[word];
            lanes.stride[used] = BLOCK;
            running[used++] = jobs;
        }
        if (!used)
            return;
        size_t blocks = left[0];
        for (size_t lane = 1; lane < used; lane++)
            blocks = left[lane] < blocks ? left[lane] : blocks;
        for (size_t lane = used; lane < kind->lanes; lane++) {
            lanes.block[lane] = nothing;
            lanes.stride[lane] = 0;
        }
        (used <= kind->lanes / 2 ? kind->half : kind->whole)(&lanes, blocks);
        for (size_t lane = used; lane--;) {
            left[lane] -= blocks;
            if (left[lane] || (left[lane] = next_blocks(running[lane], &lanes.block[lane])))
                continue;
            used--;
            for (int word = 0; word < 4; word++) {
                running[lane]->context->words[word] = lanes.words[word][lane];
                lanes.words[word][lane] = lanes.words[word][used];
            }
            running[lane] = running[used];
            left[lane] = left[used];
            lanes.block[lane] = lanes.block[used];
        }
    }
}
