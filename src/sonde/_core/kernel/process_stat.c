/* A process as /proc describes it: two files and a clock, read in one call.
 *
 * A job may have hundreds of processes, and all of them are read every second; parsing
 * the files in Python takes five times as long. */
#include "kernel/process_stat.h"
#include "format/format.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A job with more memory of its own than this is not copied. The kernel copies its page tables, and
 * meanwhile the job cannot get memory: 4 to 10 ms for 256 MiB in pages of 4 KiB, 50 to 80 ms for
 * 1 GiB, 160 ms for 4 GiB; 1 to 13 ms where all pages are huge. Once, up to 1 GiB, that is better
 * than a recording that nobody archives. */
#define MAX_OWN_BYTES ((long)1 << 30)

enum { IO_BYTES = 512, TRIES = 3, TOGETHER_NS = 50000 };

/* Read a small file as a string. Returns its length, or -errno. */
static ssize_t read_file(int fd, char *to, size_t room)
{
    ssize_t got = pread(fd, to, room - 1, 0);
    if (got < 0)
        return -errno;
    to[got] = '\0';
    return got;
}

/* Return the next number in a text, or -1 if there is none; `text` moves past it. Minus signs are
 * skipped: the fields of `stat` that may be negative (tty, priority) are not used. */
static long long next_number(const char **text)
{
    const char *at = *text;
    long long number = 0;
    while (*at != '\0' && (*at < '0' || *at > '9'))
        at++;
    if (*at == '\0')
        return -1;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (number > (LLONG_MAX - 9) / 10)
            number = LLONG_MAX / 10 - 1; /* a limit nobody set, such as rsslim */
        number = number * 10 + (*at - '0');
    }
    *text = at;
    return number;
}

/* Read the time, and the CPU time of a process up to then, including threads that have ended; -1
 * if the kernel does not say. Both are read again if we were interrupted between the two clocks. */
static void read_clocks(int pid, long long *now, long long *used)
{
    struct timespec time;
    long long before;
    *now = sonde_clock_ns();
    *used = -1;
    for (int i = 0; i < TRIES; i++) {
        /* The id that clock_getcpuclockid(3) makes; that function first asks whether the process exists. */
        if (clock_gettime((clockid_t)((~(unsigned)pid << 3) | 2), &time) < 0)
            return;
        *used = (long long)time.tv_sec * 1000000000 + time.tv_nsec;
        before = *now;
        *now = sonde_clock_ns();
        if (*now - before < TOGETHER_NS)
            return;
    }
}

static int read_io(int fd, long long *numbers)
{
    char text[IO_BYTES];
    const char *at = text;
    if (fd < 0 || read_file(fd, text, sizeof text) <= 0)
        return 0;
    for (int i = 0; i < SONDE_IO_LINES; i++)
        if ((numbers[i] = next_number(&at)) < 0)
            return 0;
    return 1;
}

/* Parse the name and the fields after it. Returns 0 or -EINVAL. */
static int parse_stat(sonde_process_stat *to)
{
    const char *name = strchr(to->text, '(');
    const char *end = strrchr(to->text, ')'); /* the name may contain brackets, too */
    if (name == NULL || end == NULL || end < name || end[1] != ' ' || end[2] == '\0')
        return -EINVAL;
    to->name = name + 1;
    to->name_bytes = (size_t)(end - to->name);
    to->field[SONDE_STAT_STATE] = (unsigned char)end[2];
    const char *at = end + 3;
    for (int i = SONDE_STAT_STATE + 1; i < SONDE_STAT_FIELDS; i++)
        if ((to->field[i] = next_number(&at)) < 0)
            return -EINVAL;
    return 0;
}

int sonde_process_read(int pid, int stat_fd, int io_fd, long long known_ns, sonde_process_stat *to)
{
    /* The order matters. `stat` comes last: it proves that everything was read from one process,
     * and what it says of ended children is never older than the I/O that includes theirs. */
    read_clocks(pid, &to->now_ns, &to->cpu_ns);
    if (to->cpu_ns >= 0 && to->cpu_ns == known_ns)
        return 1;
    to->has_io = read_io(io_fd, to->io);
    ssize_t got = read_file(stat_fd, to->text, sizeof to->text);
    return got < 0 ? (int)got : parse_stat(to);
}

/* Is the memory that a fork would copy more than we may ask for? */
int sonde_is_large(void)
{
    char text[128];
    long size, resident, shared;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    text[bytes < 0 ? 0 : bytes] = 0;
    return sscanf(text, "%ld %ld %ld", &size, &resident, &shared) == 3 &&
           (resident - shared) * sysconf(_SC_PAGESIZE) > MAX_OWN_BYTES;
}
