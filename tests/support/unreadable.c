/* Preloaded (LD_PRELOAD): as if the disk could not read some files. While there is a file UNREADABLE, whatever reads an open
   file whose path contains a line of it is told EIO. */

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

static int is_unreadable(int descriptor)
{
    char text[4096], link[64], path[4096];
    const char *place = getenv("UNREADABLE");
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
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")))
        if (*line && strstr(path, line))
            return 1;
    return 0;
}

#define READS(name, number, parameters, ...)                                                                            \
    ssize_t name parameters                                                                                             \
    {                                                                                                                   \
        if (is_unreadable(source)) {                                                                                    \
            errno = EIO;                                                                                                \
            return -1;                                                                                                  \
        }                                                                                                               \
        return syscall(number, __VA_ARGS__);                                                                            \
    }

#define AT(offset) (long)(offset), 0L /* the kernel takes the upper half of an offset apart, which is 0 of 64 bits */

READS(read, SYS_read, (int source, void *to, size_t count), source, to, count)
READS(pread, SYS_pread64, (int source, void *to, size_t count, off_t offset), source, to, count, (long)offset)
READS(pread64, SYS_pread64, (int source, void *to, size_t count, off_t offset), source, to, count, (long)offset)
READS(preadv, SYS_preadv, (int source, const struct iovec *to, int count, off_t offset), source, to, count, AT(offset))
READS(preadv64, SYS_preadv, (int source, const struct iovec *to, int count, off_t offset), source, to, count, AT(offset))
READS(preadv2, SYS_preadv2, (int source, const struct iovec *to, int count, off_t offset, int flags), source, to, count,
      AT(offset), flags)
READS(preadv64v2, SYS_preadv2, (int source, const struct iovec *to, int count, off_t offset, int flags), source, to, count,
      AT(offset), flags)
READS(sendfile, SYS_sendfile, (int to, int source, off_t *offset, size_t count), to, source, offset, count)
READS(sendfile64, SYS_sendfile, (int to, int source, off_t *offset, size_t count), to, source, offset, count)
