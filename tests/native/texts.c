/* Many threads on one intern table: the same bytes always have one id, and no id has two texts.
 *
 *   texts PART SECONDS SEED
 *
 * PART is `shared` (there is room for all texts) or `full` (there is not). Otherwise like
 * stress.c.
 */
#define _GNU_SOURCE
#include "require.h"
#include "format/format.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 4, MAX_TEXTS = 2000, MAX_BYTES = 160 };

typedef struct {
    sonde_intern_handle table;
    size_t bytes;
    uint64_t seed;
    uint32_t texts;
    pthread_barrier_t start; /* all start at once: a table gets full only once */
    uint32_t busy;           /* threads that still put texts in */
    uint32_t ids[THREADS][MAX_TEXTS];
    uint64_t refused[THREADS];
} arena;

/* Make text `number`, and return its length. Number 0 is empty; the others start with their
 * number. */
static uint32_t make_text(char *text, uint32_t number)
{
    uint64_t state = number;
    if (number == 0)
        return 0;
    uint32_t bytes = 8 + (uint32_t)(draw(&state) % (MAX_BYTES - 8));
    for (uint32_t i = 0; i < bytes; i++)
        text[i] = (char)draw(&state);
    memcpy(text, &number, sizeof number);
    return bytes;
}

static void require_text(const void *bytes, uint32_t bytes_n, uint32_t number)
{
    char right[MAX_BYTES];
    REQUIRE(number < MAX_TEXTS, "no text %u was put in", number);
    REQUIRE(make_text(right, number) == bytes_n && !memcmp(bytes, right, bytes_n),
            "text %u comes back wrong", number);
}

static uint32_t number_of(const void *bytes, uint32_t bytes_n)
{
    uint32_t number = 0;
    if (bytes_n >= sizeof number)
        memcpy(&number, bytes, sizeof number);
    return number;
}

typedef struct {
    arena *it;
    int thread;
} task;

/* Put every text in twice, each thread starting at a place of its own, upwards or downwards. */
static void *put_all(void *arg)
{
    task *of = arg;
    arena *it = of->it;
    uint64_t random = it->seed + (uint64_t)of->thread;
    uint32_t start = (uint32_t)draw(&random) % it->texts;
    uint32_t way = draw(&random) % 2 ? 1 : it->texts - 1;
    pthread_barrier_wait(&it->start);
    for (uint32_t i = 0; i < 2 * it->texts; i++) {
        char text[MAX_BYTES];
        uint32_t number = (start + i * way) % it->texts, bytes = make_text(text, number);
        uint32_t id = sonde_intern_put(&it->table, text, bytes);
        uint32_t *known = &it->ids[of->thread][number];
        REQUIRE(id <= it->table.entries, "id %u of %u", id, it->table.entries);
        /* A text that was refused once may have been put in by another thread since. */
        REQUIRE(*known == 0 || id == *known, "text %u had id %u, now %u", number, *known, id);
        *known = id;
        it->refused[of->thread] += id == 0;
    }
    __atomic_fetch_sub(&it->busy, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Read what there is while it grows, as the collector does. */
static void *get_all(void *arg)
{
    arena *it = arg;
    uint32_t busy;
    do {
        busy = sonde_load_acquire(&it->busy);
        uint32_t count = sonde_load_acquire(&it->table.shared->count);
        for (uint32_t id = 0; id <= count + 1; id++) {
            uint32_t bytes_n = 0;
            const void *bytes = sonde_intern_get(&it->table, id, &bytes_n);
            REQUIRE(bytes == NULL || (id > 0 && id <= it->table.entries), "there is no id %u", id);
            if (bytes != NULL)
                require_text(bytes, bytes_n, number_of(bytes, bytes_n));
        }
    } while (busy);
    return NULL;
}

/* Once all are done, require that what every thread was told agrees with the table. */
static void audit(arena *it)
{
    uint64_t refused = 0;
    uint8_t *taken = calloc(it->table.entries + 1, 1);
    for (int t = 0; t < THREADS; t++)
        refused += it->refused[t];
    REQUIRE(it->table.shared->lost == refused, "%" PRIu64 " refused, %" PRIu64 " counted", refused,
            it->table.shared->lost);
    REQUIRE(it->table.shared->used <= it->table.data_bytes, "more bytes than room");
    for (uint32_t number = 0; number < it->texts; number++) {
        char text[MAX_BYTES];
        uint32_t bytes_n = 0, id = sonde_intern_put(&it->table, text, make_text(text, number));
        for (int t = 0; t < THREADS; t++)
            REQUIRE(it->ids[t][number] == 0 || it->ids[t][number] == id, "text %u has two ids",
                    number);
        if (id == 0)
            continue;
        REQUIRE(!taken[id]++, "two texts have id %u", id);
        const void *bytes = sonde_intern_get(&it->table, id, &bytes_n);
        REQUIRE(bytes != NULL, "id %u has no text", id);
        require_text(bytes, bytes_n, number);
    }
    free(taken);
}

static void run_threads(arena *it)
{
    pthread_t putters[THREADS], getter;
    task tasks[THREADS];
    REQUIRE(pthread_create(&getter, NULL, get_all, it) == 0, "pthread_create");
    for (int t = 0; t < THREADS; t++) {
        tasks[t] = (task){it, t};
        REQUIRE(pthread_create(&putters[t], NULL, put_all, &tasks[t]) == 0, "pthread_create");
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(putters[t], NULL);
    pthread_join(getter, NULL);
}

typedef struct {
    const char *name;
    uint32_t texts, entries;
    uint64_t data_bytes;
} shape;

/* Two threads that put the same text in at once waste an entry: this is room for the worst case. */
#define ROOM ((uint64_t)THREADS * MAX_TEXTS)
static const shape shapes[] = {
    {"shared", MAX_TEXTS, ROOM, ROOM *MAX_BYTES},
    {"shared", 40, ROOM, ROOM *MAX_BYTES},
    {"full", 80, 64, ROOM *MAX_BYTES},
    {"full", 80, 80 * THREADS, 2000},
    {"full", 3, 1, 1},
};

/* Run one round. Returns the number of texts that were refused. */
static uint64_t run_round(const shape *of, uint64_t seed)
{
    arena *it = calloc(1, sizeof *it);
    it->bytes = sonde_intern_bytes(of->entries, of->data_bytes);
    void *mem = mmap(NULL, it->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mem != MAP_FAILED, "mmap");
    REQUIRE(sonde_intern_init(mem, it->bytes, of->entries, of->data_bytes) == 0, "init");
    REQUIRE(sonde_intern_open(&it->table, mem, it->bytes) == 0, "open");
    it->seed = seed;
    it->texts = of->texts;
    it->busy = THREADS;
    pthread_barrier_init(&it->start, NULL, THREADS);
    run_threads(it);
    pthread_barrier_destroy(&it->start);
    uint64_t lost = it->table.shared->lost;
    audit(it);
    munmap(it->table.shared, it->bytes);
    free(it);
    return lost;
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 4, "usage: texts PART SECONDS SEED");
    int64_t deadline = sonde_clock_ns() + (int64_t)(atof(argv[2]) * 1e9);
    uint64_t random = strtoull(argv[3], NULL, 0), rounds = 0, texts = 0, lost = 0;
    while (rounds == 0 || sonde_clock_ns() < deadline)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            if (strcmp(shapes[i].name, argv[1]) == 0) {
                uint64_t refused = run_round(&shapes[i], draw(&random));
                REQUIRE((strcmp(argv[1], "full") == 0) == (refused > 0), "%" PRIu64 " refused",
                        refused);
                texts += THREADS * 2 * shapes[i].texts;
                lost += refused;
                rounds++;
            }
    printf("%" PRIu64 " rounds, %" PRIu64 " texts put in, %" PRIu64 " refused and counted\n",
           rounds, texts, lost);
    return 0;
}
