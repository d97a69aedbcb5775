/* Preloaded (LD_PRELOAD): a disk that fails for a while, until the file UPLOADER_TEST_DISK is gone. Each of its lines is the
   number of an error and a part of paths: `5 /blobs/`: what reads such an open file is told EIO; `28 /data/`: what writes to
   one is told ENOSPC; `1005 /redis/`: what syncs one is told EIO. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define SYNCS 1000 /* is added to the errors of syncs */

static int fails(int error, int descriptor)
{
    char text[4096], link[64], path[4096];
    const char *place = getenv("UPLOADER_TEST_DISK");
    int kept = errno;
    int list = place ? (int)syscall(SYS_openat, AT_FDCWD, place, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = list < 0 ? 0 : syscall(SYS_read, list, text, sizeof text - 1);
    if (list >= 0)
        syscall(SYS_close, list);
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t found = length > 0 ? readlink(link, path, sizeof path - 1) : -1;
    errno = kept;
    if (found < 0)
        return 0;
    text[length] = path[found] = 0;
    char *rest = text, *line, *part;
    while ((line = strsep(&rest, "\n")))
        if (strtol(line, &part, 10) == error && strstr(path, part + 1)) {
            errno = error % SYNCS;
            return 1;
        }
    return 0;
}

#define CALL(is_failing, name, number, parameters, ...)                                                                 \
    ssize_t name parameters                                                                                             \
    {                                                                                                                   \
        return is_failing ? -1 : syscall(number, __VA_ARGS__);                                                          \
    }
#define READS(...) CALL(fails(EIO, from), __VA_ARGS__)
#define WRITES(...) CALL(fails(ENOSPC, to), __VA_ARGS__)
#define SENDS(...) CALL(fails(EIO, from) || fails(ENOSPC, to), __VA_ARGS__)

#define AT(offset) (long)(offset), 0L /* the kernel takes the upper half of an offset apart, which is 0 of 64 bits */
#define INTO(more) (int from, void *to, size_t count more)
#define OUT_OF(more) (int to, const void *from, size_t count more)
#define INTO_MANY(more) (int from, const struct iovec *to, int count more)
#define OUT_OF_MANY(more) (int to, const struct iovec *from, int count more)
#define OFFSET , off_t offset
#define FLAGS , off_t offset, int flags

READS(read, SYS_read, INTO(), from, to, count)
READS(pread, SYS_pread64, INTO(OFFSET), from, to, count, (long)offset)
READS(pread64, SYS_pread64, INTO(OFFSET), from, to, count, (long)offset)
READS(preadv, SYS_preadv, INTO_MANY(OFFSET), from, to, count, AT(offset))
READS(preadv64, SYS_preadv, INTO_MANY(OFFSET), from, to, count, AT(offset))
READS(preadv2, SYS_preadv2, INTO_MANY(FLAGS), from, to, count, AT(offset), flags)
READS(preadv64v2, SYS_preadv2, INTO_MANY(FLAGS), from, to, count, AT(offset), flags)
WRITES(write, SYS_write, OUT_OF(), to, from, count)
WRITES(pwrite, SYS_pwrite64, OUT_OF(OFFSET), to, from, count, (long)offset)
WRITES(pwrite64, SYS_pwrite64, OUT_OF(OFFSET), to, from, count, (long)offset)
WRITES(writev, SYS_writev, OUT_OF_MANY(), to, from, count)
WRITES(pwritev, SYS_pwritev, OUT_OF_MANY(OFFSET), to, from, count, AT(offset))
WRITES(pwritev64, SYS_pwritev, OUT_OF_MANY(OFFSET), to, from, count, AT(offset))
WRITES(pwritev2, SYS_pwritev2, OUT_OF_MANY(FLAGS), to, from, count, AT(offset), flags)
WRITES(pwritev64v2, SYS_pwritev2, OUT_OF_MANY(FLAGS), to, from, count, AT(offset), flags)
SENDS(sendfile, SYS_sendfile, (int to, int from, off_t *offset, size_t count), to, from, offset, count)
SENDS(sendfile64, SYS_sendfile, (int to, int from, off_t *offset, size_t count), to, from, offset, count)
SENDS(copy_file_range, SYS_copy_file_range,
      (int from, off64_t *at, int to, off64_t *other, size_t count, unsigned flags), from, at, to, other, count, flags)

#define SYNC(name, number)                                                                                              \
    int name(int descriptor)                                                                                            \
    {                                                                                                                   \
        return fails(SYNCS + EIO, descriptor) ? -1 : (int)syscall(number, descriptor);                                  \
    }

SYNC(fsync, SYS_fsync)
SYNC(fdatasync, SYS_fdatasync)
