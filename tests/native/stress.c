/* Many writers and readers on one ring: no row is torn, and none is lost uncounted.
 *
 *   stress PART SECONDS SEED
 *
 * Rounds of PART (see `parts` at the end) run for SECONDS, each of its shapes at least once. Then
 * one line says what was done. The first failure is one line on stderr, and exit status 1.
 */
#define _GNU_SOURCE
#include "arena.h"
#include "require.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- part: threads -------------------------------------------------------------------- */

typedef struct {
    arena *it;
    int writer;
} task;

static void *append_task(void *arg)
{
    task *of = arg;
    append_all(of->it, of->writer);
    return NULL;
}

static uint64_t run_threads(arena *it, uint64_t *random)
{
    pthread_t readers[MAX_READERS], writers[MAX_WRITERS];
    task tasks[MAX_WRITERS];
    (void)random;
    start_readers(it, readers);
    for (int i = 0; i < it->writers; i++) {
        tasks[i] = (task){it, i};
        REQUIRE(pthread_create(&writers[i], NULL, append_task, &tasks[i]) == 0, "pthread_create");
    }
    for (int i = 0; i < it->writers; i++)
        pthread_join(writers[i], NULL);
    join_readers(it, readers);
    return audit(it);
}

/* ---- part: processes -------------------------------------------------------------------- */

static void fork_writers(arena *it, pid_t *children)
{
    for (int i = 0; i < it->writers; i++) {
        children[i] = fork();
        REQUIRE(children[i] >= 0, "fork: %s", strerror(errno));
        if (children[i] == 0) {
            append_all(it, i);
            _exit(0);
        }
    }
}

static uint64_t run_processes(arena *it, uint64_t *random)
{
    pthread_t readers[MAX_READERS];
    pid_t children[MAX_WRITERS];
    (void)random;
    fork_writers(it, children); /* before there are threads: a child has only this one */
    start_readers(it, readers);
    for (int i = 0; i < it->writers; i++) {
        int status;
        waitpid(children[i], &status, 0);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a writer ended with %d", status);
    }
    join_readers(it, readers);
    return audit(it);
}

/* ---- part: killed ------------------------------------------------------------------------ */

/* Kill all writers once some rows are there. */
static void kill_writers(arena *it, const pid_t *children, uint64_t rows)
{
    int64_t deadline = sonde_clock_ns() + 10000000000;
    while (sonde_load_relaxed(&it->ring.shared->head) < rows) {
        REQUIRE(sonde_clock_ns() < deadline, "no rows in 10 s");
        sched_yield();
    }
    for (int i = 0; i < it->writers; i++)
        kill(children[i], SIGKILL);
    for (int i = 0; i < it->writers; i++)
        waitpid(children[i], NULL, 0);
}

static uint64_t run_killed(arena *it, uint64_t *random)
{
    pid_t children[MAX_WRITERS];
    uint64_t oldest[MAX_WRITERS], done = 0, lost = 0;
    fork_writers(it, children);
    kill_writers(it, children, draw(random) % ((uint64_t)it->writers * it->rows));
    uint64_t head = it->ring.shared->head, killed = (uint64_t)it->writers;
    for (int i = 0; i < it->writers; i++)
        done += it->done[i];
    REQUIRE(head >= done && head <= done + killed, "%" PRIu64 " tickets, %" PRIu64 " done", head,
            done);
    uint64_t missing = find_rows(it, oldest);
    REQUIRE(missing <= it->ring.shared->dropped + killed, "%" PRIu64 " rows are missing", missing);
    for (int w = 0; w < it->writers; w++)
        for (uint64_t c = oldest[w]; c < it->done[w]; c++)
            lost += it->fates[(uint64_t)w * it->rows + c] == KEPT;
    REQUIRE(lost == 0, "%" PRIu64 " rows are lost uncounted", lost);
    sonde_ring_free_slots(&it->ring);
    uint64_t row[MAX_WORDS], dropped = it->ring.shared->dropped;
    for (uint64_t i = 0; i < it->ring.capacity; i++)
        REQUIRE(!sonde_ring_append(&it->ring, row, make_row(row, it->words, 0, i)), "the ring was not healed");
    return dropped;
}

/* ---- part: signals ------------------------------------------------------------------------- */

static arena *struck;
static uint64_t strikes;

/* Write as writer 1: more rows than the ring holds, so that the slot of the interrupted row comes
 * round. */
static void strike(int number)
{
    int before = errno;
    (void)number;
    for (uint64_t i = 0; i <= struck->ring.capacity && struck->done[1] < struck->rows; i++)
        append_one(struck, 1, struck->done[1]);
    sonde_add_relaxed(&strikes, 1);
    errno = before;
}

static void *annoy(void *arg)
{
    pthread_t victim = *(pthread_t *)arg;
    while (sonde_load_acquire(struck->busy) > 1) {
        uint64_t seen = sonde_load_relaxed(&strikes);
        pthread_kill(victim, SIGUSR1);
        while (sonde_load_relaxed(&strikes) == seen && sonde_load_acquire(struck->busy) > 1)
            sched_yield();
    }
    return NULL;
}

static uint64_t run_signals(arena *it, uint64_t *random)
{
    pthread_t readers[MAX_READERS], pest, self = pthread_self();
    struct sigaction action = {.sa_handler = strike, .sa_flags = SA_RESTART};
    sigset_t only;
    (void)random;
    struck = it;
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&only);
    sigaddset(&only, SIGUSR1);
    start_readers(it, readers);
    REQUIRE(pthread_create(&pest, NULL, annoy, &self) == 0, "pthread_create");
    append_all(it, 0);
    pthread_sigmask(SIG_BLOCK, &only, NULL);
    pthread_join(pest, NULL);
    while (it->done[1] < it->rows)
        append_one(it, 1, it->done[1]);
    __atomic_fetch_sub(it->busy, 1, __ATOMIC_RELEASE);
    join_readers(it, readers);
    signal(SIGUSR1, SIG_IGN); /* discards a signal that was sent and has not arrived */
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    return audit(it);
}

/* ---- the rounds ------------------------------------------------------------------------------ */

/* Small rings, so that writers lap each other and the readers; and one that holds every row. */
static const shape shapes[] = {
    {2, 3, 4, 1, 5000},   {8, 64, 3, 2, 5000},   {64, 3, 4, 2, 20000},     {64, 17, 6, 1, 10000},
    {64, 5, 1, 3, 30000}, {1024, 8, 4, 2, 20000}, {1 << 17, 4, 5, 2, 20000},
};
static const shape signal_shapes[] = {
    {2, 64, 2, 1, 20000}, {8, 3, 2, 1, 50000}, {64, 16, 2, 1, 100000}, {1 << 18, 3, 2, 1, 100000},
};

typedef struct {
    const char *name;
    uint64_t (*run)(arena *it, uint64_t *random); /* returns the rows dropped */
    const shape *shapes;
    size_t shapes_n;
} part;

#define LIST(array) array, sizeof array / sizeof *array
static const part parts[] = {
    {"threads", run_threads, LIST(shapes)},
    {"processes", run_processes, LIST(shapes)},
    {"killed", run_killed, LIST(shapes)},
    {"signals", run_signals, LIST(signal_shapes)},
};

static void run_part(const part *it, double seconds, uint64_t random)
{
    int64_t deadline = sonde_clock_ns() + (int64_t)(seconds * 1e9);
    uint64_t rounds = 0, rows = 0, dropped = 0;
    /* On a busy machine it may take long until a signal arrives in the middle of an append. */
    enum { PATIENCE_S = 30 };
    int64_t last = deadline + PATIENCE_S * INT64_C(1000000000);
    for (; rounds < it->shapes_n || sonde_clock_ns() < (strikes && !dropped ? last : deadline);
         rounds++) {
        arena place = open_arena(&it->shapes[rounds % it->shapes_n]);
        dropped += it->run(&place, &random);
        rows += place.ring.shared->head;
        close_arena(&place);
    }
    /* One thread writes: a drop proves that a signal arrived in the middle of an append. */
    REQUIRE(!strikes || dropped, "no signal arrived in the middle of an append");
    printf("%" PRIu64 " rounds, %" PRIu64 " rows, %" PRIu64 " of them dropped and counted", rounds,
           rows, dropped);
    if (strikes)
        printf(", %" PRIu64 " signals", strikes);
    putchar('\n');
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 4, "usage: stress PART SECONDS SEED");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].name, argv[1]) == 0) {
            run_part(&parts[i], atof(argv[2]), strtoull(argv[3], NULL, 0));
            return 0;
        }
    REQUIRE(0, "there is no part %s", argv[1]);
}
