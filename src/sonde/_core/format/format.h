/* The bytes that a job writes and any other process reads.
 *
 * Every structure below lives in a file that is mapped by several processes
 * at once; docs/format.md describes each byte and why it is there. Nothing in
 * this header knows Python. Functions return 0 or -errno, take memory from
 * the caller and never print, abort or wait.
 */
#ifndef SONDE_FORMAT_H
#define SONDE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "format/ordering.h"

#define SONDE_FORMAT_VERSION 1u
#define SONDE_PAGE 4096u
#define SONDE_MAX_COLUMNS 64u
#define SONDE_MAX_OPTIONAL 32u
#define SONDE_MAX_ROW_BYTES (SONDE_MAX_COLUMNS * 8u)

/* ---- clock ---------------------------------------------------------------- */

/* Return CLOCK_MONOTONIC in nanoseconds. Any thread; safe in a signal handler. */
int64_t sonde_clock_ns(void);

/* ---- check ---------------------------------------------------------------- */

/* A 32-bit checksum of 64-bit words; never 0. It finds torn and damaged bytes and is not meant
 * for secrets. The state is the sum of the seed and each word, times powers of an odd number, so
 * changing any one word always changes it, and the products do not wait for each other. A damaged
 * row passes with a chance of 2^-32. */
extern const uint64_t sonde_check_keys[SONDE_MAX_COLUMNS + 1];

static inline uint64_t sonde_check_begin(uint64_t seed) { return seed * sonde_check_keys[0]; }

static inline uint64_t sonde_check_word(uint64_t state, uint32_t index, uint64_t word)
{
    return state + word * sonde_check_keys[index + 1];
}

static inline uint32_t sonde_check_end(uint64_t state)
{
    state = (state ^ state >> 32) * sonde_check_keys[0];
    uint32_t check = (uint32_t)(state >> 32) ^ (uint32_t)state;
    return check ? check : 1;
}

/* Return the checksum of words in one call; at most SONDE_MAX_COLUMNS of them. */
uint32_t sonde_check(uint64_t seed, const uint64_t *words, size_t words_n);

/* Return the checksum of bytes of any length; never 0 (0 means "not there yet"). */
uint32_t sonde_check_bytes(const void *bytes, size_t bytes_n);

/* ---- ring: one table of one process --------------------------------------- */

typedef struct {
    /* Written once, before the file gets its name, and covered by `check`. */
    char magic[8];         /* "SONDERNG" */
    uint32_t version;      /* SONDE_FORMAT_VERSION */
    uint32_t header_bytes; /* offset of slot 0; a multiple of SONDE_PAGE */
    uint64_t capacity;     /* slots; a power of two */
    uint32_t row_bytes;    /* a multiple of 8, at most SONDE_MAX_ROW_BYTES */
    uint32_t slot_bytes;   /* sizeof(sonde_slot) + row_bytes */
    uint32_t schema_bytes; /* JSON right after this struct */
    uint32_t check;        /* sonde_check_bytes of this part with check = 0, the schema, `spare` */
    uint64_t spare;        /* slots behind the others, for when nobody archives; 0 or a power of two */
    uint8_t pad0[80];
    /* These change all the time; each group has cache lines of its own. */
    uint64_t head; /* tickets handed out, which is rows ever asked for */
    uint8_t pad1[56];
    uint64_t dropped;   /* rows not written: the slot's last writer was still busy */
    uint64_t misfit;    /* rows not written: a value does not fit its column */
    uint64_t text_lost; /* texts stored as NULL: the text table was full */
    uint64_t archived;  /* rows with smaller tickets are archived; written by the collector */
    uint32_t is_spare;  /* 1: new rows go to the spare slots */
    uint32_t was_spare; /* 1: the spare slots were used at some time */
    uint8_t pad2[24];
} sonde_ring;

typedef struct {
    uint64_t seq;   /* 2*(ticket+1): complete; one less: being written; 0: never used */
    uint32_t check; /* of ticket, nulls and row */
    uint32_t nulls; /* bit i: the i-th optional column is NULL */
    uint64_t row[]; /* row_bytes / 8 words */
} sonde_slot;

_Static_assert(sizeof(sonde_ring) == 256, "ring header layout");
_Static_assert(offsetof(sonde_ring, capacity) == 16, "ring header layout");
_Static_assert(offsetof(sonde_ring, row_bytes) == 24, "ring header layout");
_Static_assert(offsetof(sonde_ring, schema_bytes) == 32, "ring header layout");
_Static_assert(offsetof(sonde_ring, check) == 36, "ring header layout");
_Static_assert(offsetof(sonde_ring, spare) == 40, "ring header layout");
_Static_assert(offsetof(sonde_ring, head) == 128, "ring header layout");
_Static_assert(offsetof(sonde_ring, dropped) == 192, "ring header layout");
_Static_assert(offsetof(sonde_ring, misfit) == 200, "ring header layout");
_Static_assert(offsetof(sonde_ring, text_lost) == 208, "ring header layout");
_Static_assert(offsetof(sonde_ring, archived) == 216, "ring header layout");
_Static_assert(offsetof(sonde_ring, is_spare) == 224, "ring header layout");
_Static_assert(sizeof(sonde_slot) == 16, "slot layout");
_Static_assert(offsetof(sonde_slot, check) == 8, "slot layout");
_Static_assert(offsetof(sonde_slot, nulls) == 12, "slot layout");
_Static_assert(offsetof(sonde_slot, row) == 16, "slot layout");

/* Return the size of a ring file, or 0 if the numbers are impossible. */
uint64_t sonde_ring_bytes(uint64_t capacity, uint32_t row_bytes, uint32_t schema_bytes);

/* Lay out an empty ring in zeroed memory of sonde_ring_bytes() bytes. Returns 0, or -EINVAL if
 * the numbers are impossible. One thread, before anyone reads. */
int sonde_ring_init(void *mem, uint64_t mem_bytes, uint64_t capacity, uint32_t row_bytes,
                    const void *schema, uint32_t schema_bytes);

/* Give a ring that was just laid out spare slots, in the zeroed memory behind it. Returns 0, or
 * -EINVAL if there is no room or the number is impossible. One thread, before anyone reads. */
int sonde_ring_add_spare(void *mem, uint64_t mem_bytes, uint64_t spare);

/* A ring as one process sees it. Sizes and addresses are private copies that were checked once:
 * whatever happens to the file afterwards, no access leaves the mapping. */
typedef struct {
    sonde_ring *shared; /* the counters */
    char *slots;
    uint64_t capacity, spare;
    uint32_t row_bytes, slot_bytes, schema_bytes;
} sonde_ring_handle;

/* Check that this memory is a ring, and fill in a handle for it. Returns 0,
 * -EBADMSG (not a ring, cut or damaged) or -EPROTO (a newer version). */
int sonde_ring_open(sonde_ring_handle *ring, const void *mem, uint64_t mem_bytes);

/* Append one row. Never blocks. Returns 0, or -EAGAIN if the slot's last
 * writer is still busy (the row is dropped and counted). Any thread of any
 * process; safe in a signal handler. `row` holds ring->row_bytes bytes. */
int sonde_ring_append(const sonde_ring_handle *ring, const uint64_t *row, uint32_t nulls);

/* Return how many of the newest tickets may have a row that is still there. */
uint64_t sonde_ring_reach(const sonde_ring_handle *ring);

enum sonde_slot_state {
    SONDE_ROW_OK = 0,      /* `row` and `nulls` are filled in */
    SONDE_ROW_LOST = 1,    /* overwritten by a later row */
    SONDE_ROW_PENDING = 2, /* not written (yet): busy, or dropped by its writer */
    SONDE_ROW_CORRUPT = 3, /* complete, but its check does not match */
};

/* Copy the row of one ticket out. Any thread of any process; never blocks. */
enum sonde_slot_state sonde_ring_get(const sonde_ring_handle *ring, uint64_t ticket, uint64_t *row,
                                     uint32_t *nulls);

/* Return the first ticket in [first, last) that is PENDING, or `last` if there is none. */
uint64_t sonde_ring_settled(const sonde_ring_handle *ring, uint64_t first, uint64_t last);

/* Free the slots that dead writers left busy. Only while nobody writes. */
void sonde_ring_free_slots(const sonde_ring_handle *ring);

/* ---- intern table: bytes <-> a small id, for text, frames and stacks ------- */

typedef struct {
    char magic[8];         /* "SONDEINT" */
    uint32_t version;      /* SONDE_FORMAT_VERSION */
    uint32_t header_bytes; /* offset of entry 1; SONDE_PAGE */
    uint32_t entries;      /* ids are 1 … entries */
    uint32_t slots;        /* hash index; a power of two >= 2*entries */
    uint64_t data_bytes;   /* room for the bytes themselves */
    uint32_t check;        /* sonde_check_bytes of this part with check = 0 */
    uint8_t pad0[92];
    uint64_t used;  /* data bytes handed out */
    uint64_t lost;  /* texts refused because the table was full */
    uint32_t count; /* ids handed out */
    uint8_t pad1[108];
} sonde_intern;

typedef struct {
    uint64_t offset; /* into data */
    uint32_t bytes;
    uint32_t check; /* of id and bytes; 0: not complete. Written last */
} sonde_entry;

_Static_assert(sizeof(sonde_intern) == 256, "intern header layout");
_Static_assert(offsetof(sonde_intern, data_bytes) == 24, "intern header layout");
_Static_assert(offsetof(sonde_intern, check) == 32, "intern header layout");
_Static_assert(offsetof(sonde_intern, used) == 128, "intern header layout");
_Static_assert(offsetof(sonde_intern, count) == 144, "intern header layout");
_Static_assert(sizeof(sonde_entry) == 16, "entry layout");

uint64_t sonde_intern_bytes(uint32_t entries, uint64_t data_bytes);
int sonde_intern_init(void *mem, uint64_t mem_bytes, uint32_t entries, uint64_t data_bytes);

/* An intern table as one process sees it; sizes and addresses are private, as in sonde_ring_handle. */
typedef struct {
    sonde_intern *shared; /* the counters */
    sonde_entry *entry;   /* of id 1 */
    uint32_t *slot;
    char *data;
    uint32_t entries, slots;
    uint64_t data_bytes;
} sonde_intern_handle;

/* Check that this memory is an intern table, and fill in a handle for it; as sonde_ring_open(). */
int sonde_intern_open(sonde_intern_handle *table, const void *mem, uint64_t mem_bytes);

/* Return the id of these bytes (1 …), always the same for the same bytes; 0 when the table is
 * full (counted in `lost`). Any thread of any process; never blocks. */
uint32_t sonde_intern_put(const sonde_intern_handle *table, const void *bytes, uint32_t bytes_n);

/* How much of the table new texts may fill, in eighths. The program can make texts without end, so
 * its texts must leave room for the names that every reader needs. */
enum sonde_text_share {
    SONDE_TEXTS_OURS = 8,   /* functions, files, threads, modules, sources */
    SONDE_TEXTS_NAMES = 6,  /* names that the program gives: spans, counters, markers */
    SONDE_TEXTS_VALUES = 4, /* its data: attributes, columns of its own tables */
};
uint32_t sonde_intern_put_within(const sonde_intern_handle *table, const void *bytes,
                                 uint32_t bytes_n, enum sonde_text_share share);

/* Return the bytes of an id, or NULL if there is no such id or they are damaged. */
const void *sonde_intern_get(const sonde_intern_handle *table, uint32_t id, uint32_t *bytes_n);

/* ---- stack nodes: every stack that was seen, as a tree ------------------------ */

typedef struct {
    char magic[8];         /* "SONDENOD" */
    uint32_t version;      /* SONDE_FORMAT_VERSION */
    uint32_t header_bytes; /* offset of node 1; SONDE_PAGE */
    uint32_t entries;      /* ids are 1 … entries */
    uint32_t node_bytes;   /* sizeof(sonde_node) */
    uint32_t check;        /* sonde_check_bytes of this part with check = 0 */
    uint8_t pad0[100];
    uint32_t count; /* ids handed out */
    uint32_t pad1;
    uint64_t lost; /* stacks that found no room; their time is added to node 1 */
    int64_t t_ns;  /* in a copy of the sums: when it was made; 0 in the table itself */
    uint8_t pad2[104];
} sonde_nodes;

/* A frame below its caller: the path to the root is a stack. One cache line. */
typedef struct {
    uint32_t parent;    /* id of the caller; 0: a root */
    uint32_t func;      /* text ids; 0: not known */
    uint32_t file;
    int32_t line;       /* the line that runs, or that made the call */
    int32_t first_line; /* of the function */
    uint32_t check;     /* of id and the words around it; 0: not complete. Written last */
    uint64_t hash;      /* of the whole path's text and lines: the same in every process */
    /* Sums over the samples whose innermost frame this is. They only ever grow. */
    uint64_t samples;
    int64_t wall_ns;
    int64_t cpu_ns;
    int64_t gil_ns; /* the part of wall_ns in which the thread held the GIL */
} sonde_node;

_Static_assert(sizeof(sonde_nodes) == 256, "nodes header layout");
_Static_assert(offsetof(sonde_nodes, check) == 24, "nodes header layout");
_Static_assert(offsetof(sonde_nodes, count) == 128, "nodes header layout");
_Static_assert(offsetof(sonde_nodes, lost) == 136, "nodes header layout");
_Static_assert(sizeof(sonde_node) == 64, "node layout");
_Static_assert(offsetof(sonde_node, check) == 20, "node layout");
_Static_assert(offsetof(sonde_node, hash) == 24, "node layout");
_Static_assert(offsetof(sonde_node, samples) == 32, "node layout");

/* What identifies a frame, apart from its caller. */
typedef struct {
    uint32_t func, file;
    int32_t line, first_line;
    uint64_t text_hash; /* of the texts of func and file */
} sonde_frame_key;

/* Add a text to text_hash: first that of func, then that of file. */
#define SONDE_HASH_SEED 0xcbf29ce484222325u
uint64_t sonde_hash_bytes(uint64_t hash, const void *bytes, size_t bytes_n);

uint64_t sonde_nodes_bytes(uint32_t entries);

/* Write the header of an empty table into zeroed memory. */
void sonde_nodes_head(sonde_nodes *table, uint32_t entries);
int sonde_nodes_init(void *mem, uint64_t mem_bytes, uint32_t entries);

/* A table of nodes as one process sees it; sizes and addresses are private, as in sonde_ring_handle. */
typedef struct {
    sonde_nodes *shared;
    sonde_node *node; /* of id 1 */
    uint32_t entries;
    uint32_t count;  /* of the one process that writes: nodes so far */
    uint32_t *index; /* likewise: private memory of sonde_nodes_slots() words, zeroed by the caller */
} sonde_nodes_handle;

/* Check that this memory is such a table, and fill in a handle without an index; as sonde_ring_open(). */
int sonde_nodes_open(sonde_nodes_handle *table, const void *mem, uint64_t mem_bytes);

/* Return how many words of index sonde_nodes_put() needs. */
uint64_t sonde_nodes_slots(const sonde_nodes_handle *table);

/* Fill the index of a table that has nodes already. */
void sonde_nodes_index(sonde_nodes_handle *table);

/* Return the id of this frame under this parent; 0 when the table is full (the caller counts
 * that). One thread at a time; readers in other processes need no lock. */
uint32_t sonde_nodes_put(sonde_nodes_handle *table, uint32_t parent, const sonde_frame_key *key);

/* Find a frame without adding it; 0 if it is not there. */
uint32_t sonde_nodes_find(const sonde_nodes_handle *table, uint32_t parent, const sonde_frame_key *key);

/* Copy a node that is complete and sound. Returns 0, -ENOENT if there is none, -EBADMSG if it is damaged. */
int sonde_nodes_get(const sonde_nodes_handle *table, uint32_t id, sonde_node *node);

/* Return a node in order to add to its sums; `id` must come from sonde_nodes_put(). */
sonde_node *sonde_nodes_at(const sonde_nodes_handle *table, uint32_t id);

/* ---- lines: where in its file each instruction stands --------------------------- */

/* Fill lines[0 … units-1] from a code object's line table; -1 where an instruction has no line.
 * Stays within both lengths, whatever the bytes are. */
void sonde_lines_310(int32_t *lines, uint32_t units, const uint8_t *table, uint32_t bytes,
                     int32_t first_line);
void sonde_lines_311(int32_t *lines, uint32_t units, const uint8_t *table, uint32_t bytes,
                     int32_t first_line);

/* ---- control page: how another process controls a job ----------------------- */

enum sonde_state {
    SONDE_STARTING = 0,
    SONDE_RUNNING = 1,
    SONDE_STOPPED = 2, /* sonde.stop() */
    SONDE_EXITED = 3,  /* the interpreter ended */
};

#define SONDE_RUN_NAME 48

typedef struct {
    char magic[8];    /* "SONDECTL" */
    uint32_t version; /* SONDE_FORMAT_VERSION */
    uint32_t pid;
    uint64_t start_ticks; /* of the process, from /proc/PID/stat: tells whether the pid was reused */
    uint32_t check;       /* sonde_check_bytes of this part with check = 0 */
    uint8_t pad0[36];
    uint32_t state;     /* enum sonde_state; the job writes */
    uint32_t on;        /* 1: rows are recorded; 0: paused. Either side writes */
    uint32_t bell;      /* futex: changed and woken to make the job read this page */
    uint32_t stop;      /* 1: please stop recording; the tool writes */
    uint64_t asked;     /* epoch of config.json that is to be applied; the tool writes it, then rings */
    uint64_t obeyed;    /* the last epoch that the job has applied */
    int64_t state_t_ns; /* when `state` last changed */
    /* To ask for something, raise the first number of a pair; the job then sets the second one to
     * it. */
    uint64_t sample_asked;  /* sample every thread now, idle or not */
    uint64_t sampled;
    uint64_t inspect_asked; /* write down locals and tasks: this needs the GIL */
    uint64_t inspected;
    uint64_t snapshot_asked; /* raised by a signal; the native thread starts what writes it */
    uint64_t snapshots;
    /* A run, one at a time: see stack_sums.c. Whoever starts one fills in the first five fields,
     * then raises run_asked; the native thread sets run_begun to that number, and run_ended at
     * the end. */
    char run_name[SONDE_RUN_NAME]; /* its folder in runs/; ends with NUL */
    int64_t run_every_ns;          /* sample at least this often meanwhile; 0: as configured */
    int64_t run_end_ns;            /* when it ends at the latest; set to now to end it */
    uint32_t run_sources;          /* 1: it needs sources that Python switches on and off */
    uint32_t run_bell;             /* futex: woken when it has begun or ended */
    uint64_t run_asked;
    uint64_t run_begun;
    uint64_t run_ended;
    int64_t run_begin_t_ns; /* when it began */
    int64_t run_end_t_ns;
    int64_t run_status; /* 0, or -errno if something could not be written */
    /* Pauses: whoever changes `on` updates them; see sonde_control_on(). */
    int64_t resumed_t_ns; /* when `on` last became 1 */
    int64_t paused_t_ns;  /* when it last became 0 */
    int64_t paused_ns;    /* the length of all pauses that have ended */
    uint64_t pages_lost;  /* pages of mapped files that the job could not write: see map_guard.h */
    uint32_t exit_status; /* 1 + the status that the process ended with; 0: it did not say so */
    uint8_t pad1[4096 - 308];
} sonde_control;

_Static_assert(sizeof(sonde_control) == SONDE_PAGE, "control layout");
_Static_assert(offsetof(sonde_control, start_ticks) == 16, "control layout");
_Static_assert(offsetof(sonde_control, state) == 64, "control layout");
_Static_assert(offsetof(sonde_control, bell) == 72, "control layout");
_Static_assert(offsetof(sonde_control, asked) == 80, "control layout");
_Static_assert(offsetof(sonde_control, obeyed) == 88, "control layout");
_Static_assert(offsetof(sonde_control, state_t_ns) == 96, "control layout");
_Static_assert(offsetof(sonde_control, sample_asked) == 104, "control layout");
_Static_assert(offsetof(sonde_control, inspected) == 128, "control layout");
_Static_assert(offsetof(sonde_control, run_name) == 152, "control layout");
_Static_assert(offsetof(sonde_control, run_asked) == 224, "control layout");
_Static_assert(offsetof(sonde_control, run_status) == 264, "control layout");
_Static_assert(offsetof(sonde_control, paused_ns) == 288, "control layout");
_Static_assert(offsetof(sonde_control, exit_status) == 304, "control layout");

int sonde_control_init(void *mem, uint64_t mem_bytes, uint32_t pid, uint64_t start_ticks);
int sonde_control_verify(const void *mem, uint64_t mem_bytes);

/* Record rows, or pause. Any process. */
void sonde_control_on(sonde_control *page, uint32_t on);

/* Make the job's native thread read the page now. Any process. */
void sonde_control_ring(sonde_control *page);

/* Sleep until someone wakes this word, or until `timeout_ns` has passed; not at all if the word
 * is no longer `seen`. The word may be in memory that processes share. */
void sonde_wait(uint32_t *word, uint32_t seen, int64_t timeout_ns);
void sonde_wait_until(uint32_t *word, uint32_t seen, int64_t end_ns);
void sonde_wake(uint32_t *word);

#endif
