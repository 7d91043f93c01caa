/* What the files that talk to Python share. Everything here needs the GIL, or, where Python has none,
 * an attached thread state; see exclusion.h. */
#ifndef SONDE_BINDING_H
#define SONDE_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "binding/exclusion.h"
#include "format/format.h"

/* ---- errors (errors.c) ------------------------------------------------------- */

/* Raise `_core.Damaged` or `_core.Newer` (or OSError) for a -errno. Returns NULL. */
PyObject *sonde_raise(int status, const char *what);
extern PyObject *sonde_Damaged, *sonde_Newer;

/* Make these two exceptions. Returns 0, or -1 with an exception. */
int sonde_errors_make(void);

/* ---- mapped files (map.c) ------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    void *mem; /* NULL once closed */
    size_t bytes;
    int writable;
} MapObject;

extern PyTypeObject sonde_MapType;

/* Return the memory of a map, or NULL with an exception. */
void *sonde_map_memory(PyObject *map, int writable);

/* ---- text (text.c) ------------------------------------------------------------- */

extern PyTypeObject sonde_TextType;

/* Return the id of a str in an intern table, through the cache of its `Text` object; 0 if the
 * table is full (counted there); -1 with an exception if it is not a str. */
int64_t sonde_text_id(PyObject *text, PyObject *str);
int64_t sonde_text_id_within(PyObject *text, PyObject *str, enum sonde_text_share share);

/* The same without a cache: the id of a str in a table. */
int64_t sonde_text_put(const sonde_intern_handle *table, PyObject *str, enum sonde_text_share share);

/* Return the table behind a Text; it stays valid for as long as the Text lives. */
const sonde_intern_handle *sonde_text_table(PyObject *text);

/* ---- rows (row_layout.c, writer.c, reader.c, tables.c) --------------------------- */

/* Where each column of a row lies. */
typedef struct {
    int columns;
    int optionals;
    uint32_t row_bytes;
    char kind[SONDE_MAX_COLUMNS];
    int8_t null_bit[SONDE_MAX_COLUMNS]; /* -1: never NULL */
    uint16_t offset[SONDE_MAX_COLUMNS];
} sonde_row_layout;

/* Lay out a row, from one letter for each column (docs/format.md) and one '0' or '1' for each
 * column: may it be NULL? Returns 0, or -1 with ValueError. */
int sonde_row_layout_make(sonde_row_layout *layout, const char *kinds, const char *optional);

/* Return the bytes that a value of this kind takes in a row; 0: there is no such kind. */
uint32_t sonde_kind_bytes(char kind);

extern PyTypeObject sonde_WriterType;

/* Copy the handle of the ring that a Writer writes to now, and return the map that keeps it; NULL
 * with an exception if it has none, or if its rows are of other kinds. */
PyObject *sonde_writer_ring(PyObject *writer, const char *kinds, sonde_ring_handle *ring);

/* What a Writer writes to, for subinterpreters, which share no object with it. Read and changed with the
 * lock of kernel/sub_lock.h. */
typedef struct {
    sonde_ring_handle ring;   /* `shared` is NULL while there is none */
    sonde_intern_handle text; /* valid while there is a ring */
    const uint32_t *on;       /* are rows wanted now? Valid while there is a ring */
    int is_due;               /* the first row has the ring made */
    uint32_t forks;           /* sonde_forks when all this was set */
} sonde_lent_ring;

/* From now on, keep a copy there of what the writer writes to. `to` stays valid for good; a writer has
 * one at most. Returns whether there is a ring now. */
int sonde_writer_lend(PyObject *writer, sonde_lent_ring *to);

/* Check that its rows are of these kinds. Returns 0, or -1 with ValueError. */
int sonde_writer_is(PyObject *writer, const char *kinds);

/* Make its ring now if that would wait for the first row. Returns 0, or -1 with an exception. */
int sonde_writer_open(PyObject *writer);

/* Append a row that is laid out already, even while recording is paused. Returns 0, or -1 with an
 * exception raised while the ring was made. Without a ring the row is dropped. */
int sonde_writer_put(PyObject *writer, const void *row, uint32_t nulls);

/* Append a row as a call of the writer would: not while recording is paused. */
int sonde_writer_append(PyObject *writer, const void *row, uint32_t nulls);

/* Count a text of one of its rows that found no room in the text table. */
void sonde_writer_lose_text(PyObject *writer);

/* Tell how many rows were written to a writer's ring so far, and how many it holds at once.
 * Returns 0, or -1 while the writer takes no rows. */
int sonde_writer_count(PyObject *writer, uint64_t *rows, uint64_t *capacity);

/* In a forked child: have the first row of a table of the program, or sonde_writer_open(), call
 * `opener`, which begins the recording. Until then all writers are off, and drop their rows. */
void sonde_writers_wait(PyObject *opener);

/* Append a new bytearray to a list and return its memory; NULL with an exception. Bitmaps need
 * zeroed memory; data does not, because every row is written. */
char *sonde_append_buffer(PyObject *list, uint64_t bytes, int zeroed);

extern PyMethodDef sonde_reader_methods[], sonde_tables_methods[], sonde_control_methods[];

/* ---- strings (strings.c) ------------------------------------------------------------ */

/* Return copies of the bytes objects in a list, NULL-terminated; NULL with an exception. */
char **sonde_strings_copy(PyObject *list);
void sonde_strings_free(char **strings); /* NULL is fine */

/* ---- the native thread (native_thread.c) ------------------------------------------ */

extern PyTypeObject sonde_NativeThreadType;

/* What the native thread does when it is due, without the GIL. */
typedef struct {
    int64_t (*take_turn)(sonde_control *page); /* returns when the next turn is due */
    void (*rest)(void);                        /* called when the thread is about to end */
} sonde_native_work;

/* Make the native thread do this from its next turn on; `work` stays valid for good. */
void sonde_native_thread_serve(const sonde_native_work *work);

/* Make every native thread look at its control page now. */
void sonde_native_threads_ring(void);

/* Have `run` called in the main thread, with the GIL, when `waits` says so in a turn of the native thread. */
void sonde_native_errand(int (*waits)(void), void (*run)(void));

/* Before a fork: keep every native thread from its next turn, so that a child does not inherit half
 * of something. After it: let them go on. With the GIL. */
void sonde_native_threads_rest(void);
void sonde_native_threads_wake(void);

/* ---- forks (fork_hooks.c) ------------------------------------------------------------- */

/* Python warns of a fork in a process with more than one thread. A program that has threads of its own may
 * be warned of none: OpenBLAS, for one, ends its threads at a fork. */
enum { SONDE_PYTHON_WARNS = PY_VERSION_HEX >= 0x030C0000 };

/* Have a thread of ours end before each fork, if Python warns of threads, and come back after it. Both are called with
 * the GIL; the same pair is added once. */
void sonde_at_fork(void (*rest)(void), void (*wake)(void));

/* ---- delayed calls (delayed_call.c) -------------------------------------------------- */

/* Make the call in the main thread after this delay, or, if the main thread does not come to it, in
 * a thread of our own. One call at a time. Returns 0 or -errno. */
int sonde_later(PyObject *call, int64_t delay_ns);

/* Before a fork: end the thread that waits. After it: wait on. Both return at once if no call is
 * due. With the GIL. */
void sonde_later_rest(void);
void sonde_later_wake(void);

/* Before os._exit: give the call up, and leave the thread that waits to the end of the process.
 * Returns 0, and does nothing, if that thread is making the call now. With the GIL. */
int sonde_later_leave(void);

/* Return the id of the thread of ours that is making such a call now; 0: there is none. */
uint32_t sonde_later_tid(void);

/* ---- the rest ----------------------------------------------------------------------- */

extern PyMethodDef sonde_kernel_methods[], sonde_delayed_call_methods[], sonde_fork_methods[],
    sonde_fatal_signal_methods[], sonde_machine_code_methods[];

#endif
