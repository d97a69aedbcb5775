/* Preloaded (LD_PRELOAD): a disk that fails for a while, until the file UPLOADER_TEST_DISK is gone. Each of its lines is a kind of
   call, the number of an error, and a part of paths: `r 5 /blobs/`: reads of such an open file are told EIO; `w 28 /data/`: writes
   are told ENOSPC; `s 5 /redis/`: syncs are told EIO; `n 30 /data/`: what opens a file for writing, makes, renames or removes one
   is told EROFS. The error 0 is no error: the call waits until the line is gone. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The error that the faults have for such a call on this path; -1: none. */
static int error_of(char kind, const char *path)
{
    char text[4096];
    const char *place = getenv("UPLOADER_TEST_DISK");
    int list = place ? (int)syscall(SYS_openat, AT_FDCWD, place, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = list < 0 ? 0 : syscall(SYS_read, list, text, sizeof text - 1);
    if (list >= 0)
        syscall(SYS_close, list);
    if (length <= 0)
        return -1;
    text[length] = 0;
    char *rest = text, *line, *part;
    while ((line = strsep(&rest, "\n")))
        if (line[0] == kind) {
            int error = (int)strtol(line + 1, &part, 10);
            if (strstr(path, part + 1))
                return error;
        }
    return -1;
}

static int fails_at(char kind, const char *path)
{
    int kept = errno, error;
    const struct timespec moment = {0, 20000000};
    while ((error = error_of(kind, path)) == 0)
        nanosleep(&moment, NULL);
    errno = error > 0 ? error : kept;
    return error > 0;
}

static int fails(char kind, int descriptor)
{
    char link[64], path[4096];
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t found = readlink(link, path, sizeof path - 1);
    errno = kept;
    if (found < 0)
        return 0;
    path[found] = 0;
    return fails_at(kind, path);
}

static int fails_named(int directory, const char *name)
{
    char link[64], path[8192];
    if (name[0] == '/' || directory == AT_FDCWD)
        return fails_at('n', name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t found = readlink(link, path, 4095);
    if (found < 0)
        return 0;
    snprintf(path + found, sizeof path - (size_t)found, "/%s", name);
    return fails_at('n', path);
}

#define CALL(is_failing, name, number, parameters, ...)                                                                 \
    ssize_t name parameters                                                                                             \
    {                                                                                                                   \
        return is_failing ? -1 : syscall(number, __VA_ARGS__);                                                          \
    }
#define READS(...) CALL(fails('r', from), __VA_ARGS__)
#define WRITES(...) CALL(fails('w', to), __VA_ARGS__)
#define SENDS(...) CALL(fails('r', from) || fails('w', to), __VA_ARGS__)

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
        return fails('s', descriptor) ? -1 : (int)syscall(number, descriptor);                                          \
    }

SYNC(fsync, SYS_fsync)
SYNC(fdatasync, SYS_fdatasync)

#define WRITING (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)
#define OPENS(name, parameters, directory)                                                                              \
    int name parameters                                                                                                 \
    {                                                                                                                   \
        va_list more;                                                                                                   \
        va_start(more, flags);                                                                                          \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                                       \
        va_end(more);                                                                                                   \
        if (flags & WRITING && fails_named(directory, path))                                                            \
            return -1;                                                                                                  \
        return (int)syscall(SYS_openat, directory, path, flags, mode);                                                  \
    }

OPENS(open, (const char *path, int flags, ...), AT_FDCWD)
OPENS(open64, (const char *path, int flags, ...), AT_FDCWD)
OPENS(openat, (int from, const char *path, int flags, ...), from)
OPENS(openat64, (int from, const char *path, int flags, ...), from)

#define NAMES(name, directory, number, parameters, ...)                                                                 \
    int name parameters                                                                                                 \
    {                                                                                                                   \
        return fails_named(directory, path) ? -1 : (int)syscall(number, __VA_ARGS__);                                   \
    }
NAMES(mkdir, AT_FDCWD, SYS_mkdirat, (const char *path, mode_t mode), AT_FDCWD, path, mode)
NAMES(mkdirat, from, SYS_mkdirat, (int from, const char *path, mode_t mode), from, path, mode)
NAMES(unlink, AT_FDCWD, SYS_unlinkat, (const char *path), AT_FDCWD, path, 0)
NAMES(unlinkat, from, SYS_unlinkat, (int from, const char *path, int flags), from, path, flags)
NAMES(rmdir, AT_FDCWD, SYS_unlinkat, (const char *path), AT_FDCWD, path, AT_REMOVEDIR)
NAMES(rename, AT_FDCWD, SYS_renameat2, (const char *path, const char *other), AT_FDCWD, path, AT_FDCWD, other, 0)
NAMES(renameat, from, SYS_renameat2, (int from, const char *path, int to, const char *other), from, path, to, other, 0)
NAMES(link, AT_FDCWD, SYS_linkat, (const char *path, const char *other), AT_FDCWD, path, AT_FDCWD, other, 0)
NAMES(linkat, from, SYS_linkat, (int from, const char *path, int to, const char *other, int flags), from, path, to, other, flags)
