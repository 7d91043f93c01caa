/* See arena.h. */
#define _GNU_SOURCE
#include "arena.h"
#include "require.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

/* ---- rows that tell whether they are whole ----------------------------------- */

uint32_t make_row(uint64_t *row, uint32_t words, uint64_t writer, uint64_t counter)
{
    uint64_t state = writer << 48 ^ counter;
    row[0] = writer;
    row[1] = counter;
    for (uint32_t i = 2; i < words; i++)
        row[i] = draw(&state);
    return (uint32_t)draw(&state);
}

static void require_whole(const uint64_t *row, uint32_t words, uint32_t nulls, uint64_t ticket)
{
    uint64_t right[MAX_WORDS];
    REQUIRE(row[0] < MAX_WRITERS, "ticket %" PRIu64 ": there is no writer %" PRIu64, ticket, row[0]);
    REQUIRE(make_row(right, words, row[0], row[1]) == nulls && !memcmp(row, right, words * 8),
            "ticket %" PRIu64 " is torn", ticket);
}

/* ---- a ring and what became of every row ---------------------------------------- */

static void *map_shared(size_t bytes, int fd)
{
    int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    REQUIRE(mem != MAP_FAILED, "mmap: %s", strerror(errno));
    return mem;
}

arena open_arena(const shape *of)
{
    arena it = {
        .words = of->words, .writers = of->writers, .readers = of->readers, .rows = of->rows,
    };
    it.bytes = sonde_ring_bytes(of->capacity, of->words * 8, 2);
    FILE *file = tmpfile();
    REQUIRE(file && ftruncate(fileno(file), (off_t)it.bytes) == 0, "%s", strerror(errno));
    void *mem = map_shared(it.bytes, fileno(file));
    fclose(file);
    REQUIRE(sonde_ring_init(mem, it.bytes, of->capacity, of->words * 8, "{}", 2) == 0, "init");
    REQUIRE(sonde_ring_open(&it.ring, mem, it.bytes) == 0, "open");
    it.done = map_shared((MAX_WRITERS + 1) * sizeof *it.done, -1);
    it.busy = (uint32_t *)(it.done + MAX_WRITERS);
    *it.busy = (uint32_t)of->writers;
    it.fates = map_shared((size_t)of->writers * of->rows, -1);
    return it;
}

void close_arena(arena *it)
{
    munmap(it->ring.shared, it->bytes);
    munmap(it->done, (MAX_WRITERS + 1) * sizeof *it->done);
    munmap(it->fates, (size_t)it->writers * it->rows);
}

void append_one(arena *it, int writer, uint64_t counter)
{
    uint64_t row[MAX_WORDS];
    uint32_t nulls = make_row(row, it->words, (uint64_t)writer, counter);
    int status = sonde_ring_append(&it->ring, row, nulls);
    REQUIRE(status == 0 || status == -EAGAIN, "append: %d", status);
    it->fates[(uint64_t)writer * it->rows + counter] = status == 0 ? KEPT : DROPPED;
    sonde_store_relaxed(&it->done[writer], counter + 1);
}

void append_all(arena *it, int writer)
{
    for (uint64_t counter = 0; counter < it->rows; counter++)
        append_one(it, writer, counter);
    __atomic_fetch_sub(it->busy, 1, __ATOMIC_RELEASE);
}

/* ---- readers: every row they are given is whole and stands where it should ----------- */

/* Read tickets upwards. A writer's rows have rising tickets, so its counters must rise, too; a
 * row of another ticket would break that. */
static void read_range(const arena *it, uint64_t first, uint64_t last, uint64_t *newest)
{
    uint64_t row[MAX_WORDS];
    uint32_t nulls;
    for (uint64_t ticket = first; ticket < last; ticket++) {
        enum sonde_slot_state state = sonde_ring_get(&it->ring, ticket, row, &nulls);
        REQUIRE(state != SONDE_ROW_CORRUPT, "ticket %" PRIu64 " is corrupt", ticket);
        if (state != SONDE_ROW_OK)
            continue;
        require_whole(row, it->words, nulls, ticket);
        REQUIRE(row[1] >= newest[row[0]] && row[1] <= ticket,
                "ticket %" PRIu64 " holds row %" PRIu64 " of writer %" PRIu64, ticket, row[1],
                row[0]);
        REQUIRE(it->writers > 1 || row[1] == ticket, "ticket %" PRIu64 " holds another row", ticket);
        newest[row[0]] = row[1] + 1;
    }
}

static void *read_all(void *arg)
{
    const arena *it = arg;
    uint64_t next = 0, newest[MAX_WRITERS] = {0}, random = (uintptr_t)&next;
    uint32_t busy;
    do {
        busy = sonde_load_acquire(it->busy);
        uint64_t head = sonde_load_acquire(&it->ring.shared->head);
        uint64_t oldest = head > it->ring.capacity ? head - it->ring.capacity : 0;
        next = next < oldest ? oldest : next;
        read_range(it, next, head, newest);
        next = head;
        uint64_t again[MAX_WRITERS] = {0};
        uint64_t first = oldest + draw(&random) % it->ring.capacity;
        read_range(it, first, first + 32, again);
        REQUIRE(sonde_ring_settled(&it->ring, first, head) <= (head > first ? head : first),
                "settled is past the end");
    } while (busy);
    return NULL;
}

void start_readers(arena *it, pthread_t *readers)
{
    for (int i = 0; i < it->readers; i++)
        REQUIRE(pthread_create(&readers[i], NULL, read_all, it) == 0, "pthread_create");
}

void join_readers(arena *it, pthread_t *readers)
{
    for (int i = 0; i < it->readers; i++)
        pthread_join(readers[i], NULL);
}

/* ---- the audit, when nobody writes any more -------------------------------------------- */

uint64_t find_rows(arena *it, uint64_t *oldest)
{
    uint64_t row[MAX_WORDS], newest[MAX_WRITERS] = {0}, missing = 0, head = it->ring.shared->head;
    memset(oldest, 0xff, MAX_WRITERS * sizeof *oldest);
    uint32_t nulls;
    uint64_t first = head > it->ring.capacity ? head - it->ring.capacity : 0;
    read_range(it, first, head, newest);
    for (uint64_t ticket = first; ticket < head; ticket++) {
        enum sonde_slot_state state = sonde_ring_get(&it->ring, ticket, row, &nulls);
        REQUIRE(state == SONDE_ROW_OK || state == SONDE_ROW_PENDING, "ticket %" PRIu64 ": state %d",
                ticket, (int)state);
        if (state == SONDE_ROW_PENDING) {
            missing++;
            continue;
        }
        uint8_t *fate = &it->fates[row[0] * it->rows + row[1]];
        REQUIRE(*fate != DROPPED, "a row counted as dropped is there");
        *fate = FOUND;
        if (row[1] < oldest[row[0]])
            oldest[row[0]] = row[1];
    }
    return missing;
}

uint64_t audit(arena *it)
{
    uint64_t asked = (uint64_t)it->writers * it->rows, counts[4] = {0}, oldest[MAX_WRITERS];
    for (uint64_t i = 0; i < asked; i++)
        counts[it->fates[i]]++;
    uint64_t head = it->ring.shared->head, dropped = it->ring.shared->dropped;
    REQUIRE(head == asked, "%" PRIu64 " tickets for %" PRIu64 " rows", head, asked);
    REQUIRE(counts[KEPT] + dropped == asked && counts[DROPPED] == dropped,
            "%" PRIu64 " kept and %" PRIu64 " dropped of %" PRIu64, counts[KEPT], dropped, asked);
    uint64_t missing = find_rows(it, oldest);
    REQUIRE(missing <= dropped, "%" PRIu64 " rows are missing uncounted", missing - dropped);
    REQUIRE(it->ring.capacity < asked || missing == dropped, "drops were miscounted");
    for (int w = 0; w < it->writers; w++)
        for (uint64_t c = oldest[w]; c < it->rows; c++)
            REQUIRE(it->fates[(uint64_t)w * it->rows + c] != KEPT,
                    "row %" PRIu64 " of writer %d is lost uncounted", c, w);
    return dropped;
}
