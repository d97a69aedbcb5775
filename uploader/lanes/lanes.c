/* Advances the hashes of many contents at once: MD5 with one content in each lane of the processor's vectors, SHA-256 with two
   contents in turns.

   A hash is serial: each step waits for the step before, and most of the processor idles meanwhile. The steps of other contents
   fill this idle time. States are OpenSSL's MD5_CTX and SHA256_CTX, byte for byte (md5.h, sha.h). The library calls nothing, not
   even libc, so it runs on every Linux with this processor. */

#include <stddef.h>
#include <stdint.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#if !defined(__linux__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || !(defined(__x86_64__) || defined(__aarch64__))
#error "no lanes for this machine"
#endif

enum { BLOCK = 64, MOST_LANES = 16, MOST_WORDS = 8 };

/* The fields of a state after the words. */
struct rest {
    uint32_t bits_low, bits_high;
    uint8_t waiting[BLOCK]; /* the incomplete block */
    uint32_t waiting_bytes;
};

struct piece {
    const uint8_t *bytes;
    size_t length;
};

/* A state, and the `count` pieces to advance it by. */
struct job {
    uint32_t *words;
    struct piece *pieces;
    size_t count;
};

/* The words, a column for each lane; for each lane its next block, and the distance to the block after: 0 for an unused
   lane. */
struct lanes {
    uint32_t words[MOST_WORDS][MOST_LANES] __attribute__((aligned(64)));
    const uint8_t *block[MOST_LANES];
    size_t stride[MOST_LANES];
};

typedef void kernel(struct lanes *, size_t blocks);

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* WIDTH: words in a vector. VECTORS: vectors that take turns, because the processor can work on several at once. */
#define WIDTH 4
#define VECTORS 1
#define NAME baseline_4
#include "md5.h"
#define WIDTH 4
#define VECTORS 2
#define NAME baseline_8
#include "md5.h"
#ifdef __x86_64__
#define TARGET __attribute__((target("avx2")))
#define WIDTH 8
#define VECTORS 1
#define NAME avx2_8
#include "md5.h"
#define TARGET __attribute__((target("avx2")))
#define WIDTH 8
#define VECTORS 2
#define NAME avx2_16
#include "md5.h"
#define TARGET __attribute__((target("avx512f,avx512vl")))
#define WIDTH 8
#define VECTORS 1
#define NAME avx512_8
#include "md5.h"
#define TARGET __attribute__((target("avx512f,avx512vl")))
#define WIDTH 16
#define VECTORS 1
#define NAME avx512_16
#include "md5.h"
#define LANES 1
#define NAME sha_1
#include "sha256.h"
#define LANES 2
#define NAME sha_2
#include "sha256.h"
#endif

/* Each kind has two kernels, for half of the lanes and for all. The best kind of an algorithm comes first. */
static const struct kind {
    const char *algorithm, *name;
    size_t words, lanes;
    kernel *half, *whole;
} kinds[] = {
#ifdef __x86_64__
    {"md5", "avx512", 4, 16, avx512_8, avx512_16},
    {"md5", "avx2", 4, 16, avx2_8, avx2_16},
    {"md5", "sse2", 4, 8, baseline_4, baseline_8},
    {"sha256", "sha", 8, 2, sha_1, sha_2},
#else
    {"md5", "neon", 4, 8, baseline_4, baseline_8},
#endif
};
enum { AVX512, AVX2, SSE2, SHA };

/* Returns the algorithm of a kind, by hashlib's name; NULL after the last kind. */
const char *uploader_lanes_algorithm(size_t kind)
{
    return kind < sizeof kinds / sizeof kinds[0] ? kinds[kind].algorithm : NULL;
}

const char *uploader_lanes_kind(size_t kind)
{
    return kinds[kind].name;
}

/* Returns the number of lanes of a kind; 0 if the processor lacks the kind. */
size_t uploader_lanes_count(size_t kind)
{
#ifdef __x86_64__
    unsigned eax, ebx = 0, ecx, edx;
    __builtin_cpu_init();
    if (kind == AVX512 && !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")))
        return 0;
    if (kind == AVX2 && !__builtin_cpu_supports("avx2"))
        return 0;
    /* Not all compilers know this feature by name. */
    if (kind == SHA && !(__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ebx & bit_SHA && __builtin_cpu_supports("sse4.1")))
        return 0;
#endif
    return kinds[kind].lanes;
}

static struct rest *rest_of(const struct kind *kind, const struct job *job)
{
    return (struct rest *)(job->words + kind->words);
}

/* Finds the next blocks of a job that lie side by side. Returns their number, 0 at the end of the job. */
static size_t next_blocks(struct job *job, struct rest *rest, const uint8_t **block)
{
    for (; job->count; job->pieces++, job->count--) {
        struct piece *piece = job->pieces;
        if (!rest->waiting_bytes && piece->length >= BLOCK) {
            size_t blocks = piece->length / BLOCK;
            *block = piece->bytes;
            piece->bytes += blocks * BLOCK;
            piece->length %= BLOCK;
            return blocks;
        }
        while (piece->length) {
            rest->waiting[rest->waiting_bytes++] = *piece->bytes++;
            piece->length--;
            if (rest->waiting_bytes == BLOCK) {
                rest->waiting_bytes = 0;
                *block = rest->waiting;
                return 1;
            }
        }
    }
    return 0;
}

/* Advances all jobs to their ends. */
void uploader_lanes_update(size_t number, struct job *jobs, size_t count)
{
    static const uint8_t nothing[BLOCK];
    const struct kind *kind = &kinds[number];
    struct lanes lanes;
    struct job *running[MOST_LANES];
    size_t left[MOST_LANES], used = 0;

    /* A loop, because some compilers call memset for an initialiser. */
    for (size_t word = 0; word < MOST_WORDS; word++)
        for (size_t lane = 0; lane < MOST_LANES; lane++)
            lanes.words[word][lane] = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t p = 0; p < jobs[i].count; p++) {
            struct rest *rest = rest_of(kind, &jobs[i]);
            uint64_t bits = (uint64_t)rest->bits_high << 32 | rest->bits_low;
            bits += (uint64_t)jobs[i].pieces[p].length << 3;
            rest->bits_low = (uint32_t)bits;
            rest->bits_high = (uint32_t)(bits >> 32);
        }
    for (;;) {
        for (; count && used < kind->lanes; jobs++, count--) {
            left[used] = next_blocks(jobs, rest_of(kind, jobs), &lanes.block[used]);
            if (!left[used])
                continue;
            for (size_t word = 0; word < kind->words; word++)
                lanes.words[word][used] = jobs->words[word];
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
            struct job *job = running[lane];
            if (left[lane] || (left[lane] = next_blocks(job, rest_of(kind, job), &lanes.block[lane])))
                continue;
            used--;
            for (size_t word = 0; word < kind->words; word++) {
                job->words[word] = lanes.words[word][lane];
                lanes.words[word][lane] = lanes.words[word][used];
            }
            running[lane] = running[used];
            left[lane] = left[used];
            lanes.block[lane] = lanes.block[used];
        }
    }
}
