/* What the Python binding's files share. Everything here needs the GIL. */
#ifndef SONDE_BINDING_H
#define SONDE_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>

#include "format/format.h"

/* A file mapped into this process. */
typedef struct {
    PyObject_HEAD
    void *mem; /* NULL once closed */
    size_t bytes;
    int writable;
} MapObject;

extern PyTypeObject sonde_MapType, sonde_TextType, sonde_WriterType, sonde_WatcherType,
    sonde_GcType, sonde_NestType, sonde_SamplerType, sonde_CallType, sonde_TorchMarkType, sonde_TorchMarksType;

/* The memory of a map, or NULL with an exception set. */
void *sonde_map_memory(PyObject *map, int writable);

/* Raise `_core.Damaged` or `_core.Newer` (or OSError) for a -errno. Returns NULL. */
PyObject *sonde_raise(int status, const char *what);
extern PyObject *sonde_Damaged, *sonde_Newer;

/* The id of a str in an intern table, through the cache of its `Text` object.
 * 0 if the table is full (counted there). -1 with an exception if not a str. */
int64_t sonde_text_id(PyObject *text, PyObject *str);

/* The table behind a Text. */
sonde_intern *sonde_text_table(PyObject *text);

/* The ring that a Writer writes to now, and the map that keeps it; NULL with an
 * exception if it has none, or if its rows are of other kinds. */
sonde_ring *sonde_writer_ring(PyObject *writer, const char *kinds, PyObject **map);

/* 0 if its rows are of these kinds; -1 with ValueError. */
int sonde_writer_is(PyObject *writer, const char *kinds);

/* Have its ring made if that waits for the first row. 0, or -1 with an exception. */
int sonde_writer_open(PyObject *writer);

/* Append a row that is laid out already, whatever the page says. 0, or -1 with an
 * exception of the one who makes the ring. A row that has no ring is nobody's. */
int sonde_writer_put(PyObject *writer, const void *row, uint32_t nulls);

/* A text of a row for its table found no room: count it. */
void sonde_writer_lose_text(PyObject *writer);

/* Append it as a call of the writer would: not while the page says off. */
int sonde_writer_append(PyObject *writer, const void *row, uint32_t nulls);

/* Where each column of a row lies. */
typedef struct {
    int columns;
    int optionals;
    uint32_t row_bytes;
    char kind[SONDE_MAX_COLUMNS];
    int8_t null_bit[SONDE_MAX_COLUMNS]; /* -1: never NULL */
    uint16_t offset[SONDE_MAX_COLUMNS];
} sonde_layout;

/* From one letter a column (docs/format.md) and one '0'/'1' a column.
 * Returns 0, or -1 with ValueError set. */
int sonde_layout_make(sonde_layout *layout, const char *kinds, const char *optional);

/* Bytes a value of this kind takes in a row; 0: no such kind. */
uint32_t sonde_kind_bytes(char kind);

/* Rows in a writer's ring so far, and how many it holds at once. -1 while it takes none. */
int sonde_writer_count(PyObject *writer, uint64_t *rows, uint64_t *capacity);

/* Called in a forked child, before anything else runs there. */
void sonde_writers_off(void);
void sonde_events_off(void);
void sonde_watchers_off(void);
void sonde_later_off(void);
void sonde_alive_off(void);
void sonde_sampling_off(void);
void sonde_signal_off(void);

/* A native thread of ours: small stack, no signals. 0 or -errno. */
int sonde_thread_start(void *(*body)(void *), void *arg, pthread_t *thread);

/* Make every watcher look at its page now. */
void sonde_watchers_ring(void);

/* The sampler's turn, in the watcher's thread; when it wants the next one. */
int64_t sonde_sampling_turn(sonde_control *page);
void sonde_sampling_rest(void); /* its last one, before that thread ends */

PyObject *sonde_later(PyObject *module, PyObject *args);
PyObject *sonde_later_cancel(PyObject *module, PyObject *none);
PyObject *sonde_alive_hold(PyObject *module, PyObject *args);
PyObject *sonde_alive_release(PyObject *module, PyObject *none);
PyObject *sonde_alive_probe(PyObject *module, PyObject *args);

PyObject *sonde_process_look(PyObject *module, PyObject *args);
PyObject *sonde_frame_locals(PyObject *module, PyObject *frame);
PyObject *sonde_summarize(PyObject *module, PyObject *args);
PyObject *sonde_soon(PyObject *module, PyObject *call);
PyObject *sonde_visit(PyObject *module, PyObject *args);
PyObject *sonde_hold(PyObject *module, PyObject *args);
PyObject *sonde_visit_calls(void); /* the names of what a visitor calls, in order */
PyObject *sonde_signal_catch(PyObject *module, PyObject *args);
PyObject *sonde_signal_release(PyObject *module, PyObject *none);

extern PyMethodDef sonde_read_methods[];
extern PyMethodDef sonde_steer_methods[];

#endif
