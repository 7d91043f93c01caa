/* What the events of a process add up to: sums by name, and the regions that are open.
 *
 * They are one file of a session, `event.totals`. Only the job writes it, one thread at a time
 * (the one that holds the GIL); any process reads it without a lock. Nothing here knows Python.
 */
#ifndef SONDE_EVENT_TOTALS_H
#define SONDE_EVENT_TOTALS_H

#include "format/format.h"

enum sonde_event_kind {
    SONDE_SPAN = 0,
    SONDE_TASK = 1,
    SONDE_FRAME = 2,
    SONDE_EVENT = 3,
    SONDE_COUNTER = 4,
    SONDE_MARKER = 5,
    SONDE_EVENT_KINDS = 6,
};

#define SONDE_TOTALS_SUMS 8192u
#define SONDE_TOTALS_OPEN 8192u /* slot 0 is never used; a power of two: see the ids of regions */

typedef struct {
    char magic[8]; /* "SONDEEVT" */
    uint32_t version;
    uint32_t header_bytes; /* offset of sum 0; SONDE_PAGE */
    uint32_t sums;         /* how many there is room for; the open regions follow them */
    uint32_t open;
    uint32_t sum_bytes;
    uint32_t open_bytes;
    uint32_t check; /* sonde_check_bytes of this part with check = 0 */
    uint8_t pad0[92];
    uint64_t used;      /* sums 0 … used-1 are in use */
    uint64_t sums_lost; /* events whose name found no room among the sums */
    uint64_t open_lost; /* regions that found no slot: they are seen only when they have ended */
    int64_t closed_ns;  /* when the program stopped recording its events; 0: it records */
    int64_t paused_ns;  /* while stopped: all pauses until then; else the program's own pauses */
    uint8_t pad1[88];
} sonde_totals;

/* All events of one kind, domain and name. */
typedef struct {
    uint64_t seq; /* odd: being written */
    uint32_t name, domain; /* text ids; 0: none */
    uint32_t kind;         /* enum sonde_event_kind */
    uint32_t check;        /* of the words after it and the three before */
    uint64_t count;
    int64_t total_ns;          /* of regions: without pauses; of a counter: the time in `area` */
    int64_t min_ns, max_ns;    /* of regions */
    double low, high, last;    /* values of a counter */
    double area;               /* of a counter: value times ns, up to last_ns, without pauses */
    int64_t first_ns, last_ns; /* the first and the newest event */
    int64_t since_ns;          /* the sums count from here on */
    int64_t paused_ns;         /* of a counter: all pauses up to last_ns */
    uint64_t pad;
} sonde_sum;

/* A region that has begun and not ended. */
typedef struct {
    uint64_t seq; /* odd: being written */
    uint32_t check;
    uint32_t is_open; /* 0: it has ended, or the slot was never used */
    int64_t id, parent; /* parent 0: none */
    int64_t t_ns;
    uint32_t name, domain, kind;
    int32_t thread;
    int64_t number; /* of a frame */
    uint64_t pad;
} sonde_open;

_Static_assert(sizeof(sonde_totals) == 256, "totals layout");
_Static_assert(offsetof(sonde_totals, check) == 32, "totals layout");
_Static_assert(offsetof(sonde_totals, used) == 128, "totals layout");
_Static_assert(sizeof(sonde_sum) == 128, "sum layout");
_Static_assert(offsetof(sonde_sum, count) == 24, "sum layout");
_Static_assert(offsetof(sonde_sum, low) == 56, "sum layout");
_Static_assert(offsetof(sonde_sum, first_ns) == 88, "sum layout");
_Static_assert(sizeof(sonde_open) == 72, "open layout");
_Static_assert(offsetof(sonde_open, id) == 16, "open layout");
_Static_assert(offsetof(sonde_open, number) == 56, "open layout");

uint64_t sonde_totals_bytes(void);

/* Lay out an empty file in zeroed memory. Returns 0, or -EINVAL if there is too little memory. */
int sonde_totals_init(void *mem, uint64_t mem_bytes);

/* Can this memory be read and written as such a file without leaving it? Returns 0, -EBADMSG or
 * -EPROTO. */
int sonde_totals_verify(const void *mem, uint64_t mem_bytes);

sonde_sum *sonde_totals_sum(const sonde_totals *totals, uint64_t at);
sonde_open *sonde_totals_open(const sonde_totals *totals, uint32_t slot);

/* Call these around a change: readers then see the state before it or after it. */
void sonde_sum_begin(sonde_sum *sum);
void sonde_sum_end(sonde_sum *sum);
void sonde_open_begin(sonde_open *open);
void sonde_open_end(sonde_open *open);

/* Copy an entry. Returns 0; -EAGAIN if it is being changed all the time (or its writer died in
 * the middle); -EBADMSG if it is damaged. */
int sonde_sum_read(const sonde_sum *from, sonde_sum *to);
int sonde_open_read(const sonde_open *from, sonde_open *to);

#endif
