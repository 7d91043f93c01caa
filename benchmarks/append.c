/* Time of one append with its clock, from several threads into one ring.
 * Usage: append FILE THREADS ROWS. Prints: ns per append, ns per clock, rows dropped. */
#include "format/format.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROW_WORDS = 5, CAPACITY = 1 << 18, MAX_THREADS = 64 };

static sonde_ring *ring;
static long rows;
static pthread_barrier_t begin;

static void append_rows(long n)
{
    uint64_t row[ROW_WORDS] = {0};
    for (long i = 0; i < n; i++) {
        row[0] = (uint64_t)sonde_clock_ns();
        (void)sonde_ring_append(ring, row, 0);
    }
}

static void *work(void *took_ns)
{
    pthread_barrier_wait(&begin);
    int64_t before = sonde_clock_ns();
    append_rows(rows);
    *(int64_t *)took_ns = sonde_clock_ns() - before;
    return NULL;
}

static double time_clock(void)
{
    volatile int64_t sink;
    int64_t before = sonde_clock_ns();
    for (long i = 0; i < rows; i++)
        sink = sonde_clock_ns();
    (void)sink;
    return (double)(sonde_clock_ns() - before) / (double)rows;
}

static int map_ring(const char *path)
{
    uint64_t bytes = sonde_ring_bytes(CAPACITY, ROW_WORDS * 8, 2);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)bytes))
        return -1;
    ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return ring == MAP_FAILED ? -1 : sonde_ring_init(ring, bytes, CAPACITY, ROW_WORDS * 8, "{}", 2);
}

int main(int argc, char **argv)
{
    int threads = argc == 4 ? atoi(argv[2]) : 0;
    if (threads < 1 || threads > MAX_THREADS || map_ring(argv[1]) < 0)
        return 2;
    rows = atol(argv[3]);
    append_rows(CAPACITY); /* the first lap pays for the pages */
    pthread_t thread[MAX_THREADS];
    int64_t took_ns[MAX_THREADS], sum_ns = 0;
    pthread_barrier_init(&begin, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, &took_ns[i]))
            return 2;
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        sum_ns += took_ns[i];
    }
    printf("%.3f %.3f %llu\n", (double)sum_ns / threads / (double)rows, time_clock(),
           (unsigned long long)ring->dropped);
    return 0;
}
