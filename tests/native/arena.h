/* A ring under stress, and what became of every row that was written to it. */
#ifndef SONDE_ARENA_H
#define SONDE_ARENA_H

#include "format/format.h"

#include <pthread.h>

enum { MAX_WRITERS = 8, MAX_READERS = 3, MAX_WORDS = SONDE_MAX_ROW_BYTES / 8 };

enum fate { UNKNOWN = 0, KEPT, DROPPED, FOUND };

typedef struct {
    uint64_t capacity;
    uint32_t words; /* words of a row; at least 3 */
    int writers, readers;
    uint64_t rows; /* rows of each writer */
} shape;

typedef struct {
    sonde_ring_handle ring;
    size_t bytes;
    uint32_t words;
    int writers, readers;
    uint64_t rows;
    /* Shared with child processes, like the ring. */
    uint8_t *fates; /* enum fate of row c of writer w at w * rows + c */
    uint64_t *done; /* appends that have returned, by writer */
    uint32_t *busy; /* writers that have not finished */
} arena;

/* Make a new ring in a mapped file. */
arena open_arena(const shape *of);
void close_arena(arena *it);

/* Fill a row that shows whether it is whole, and return its nulls. Word 0 names the writer, word
 * 1 counts its rows. */
uint32_t make_row(uint64_t *row, uint32_t words, uint64_t writer, uint64_t counter);

/* Append a writer's row, or all its rows, and note their fate. Safe in a signal handler. */
void append_one(arena *it, int writer, uint64_t counter);
void append_all(arena *it, int writer);

/* Start readers that read every ticket until no writer is busy: whatever they are given must be
 * whole and in its place. */
void start_readers(arena *it, pthread_t *readers);
void join_readers(arena *it, pthread_t *readers);

/* Call this once nobody writes: mark the rows that are there as FOUND and note each writer's
 * oldest. Returns how many tickets hold no row. */
uint64_t find_rows(arena *it, uint64_t *oldest);

/* Call this once all writers have finished: require that every row was kept or counted, and that
 * what was kept last is still there. Returns the rows dropped. */
uint64_t audit(arena *it);

#endif
