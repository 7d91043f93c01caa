/* Regions, counters and markers of a program: what the files of this folder share. Needs the GIL,
 * or the turn (see below) where Python has none. */
#ifndef SONDE_EVENTS_H
#define SONDE_EVENTS_H

#include "binding/binding.h"
#include "format/event_totals.h"
#include "events/place.h"
#include "events/subinterpreter.h"

extern PyTypeObject sonde_NamedType, sonde_RegionType, sonde_SpanType, sonde_CountType, sonde_MarkType,
    sonde_NestingCheckType;
extern PyMethodDef sonde_events_methods[];

/* Add Region and Span to the module. */
int sonde_region_ready(PyObject *core);

/* The types of a subinterpreter, where a type belongs to a module: Named is the base of the others. */
extern PyType_Spec sonde_sub_named, sonde_sub_region, sonde_sub_span, sonde_sub_count, sonde_sub_mark;

/* Have calls of the type make spans at the usual price. */
void sonde_sub_span_ready(PyTypeObject *type);

/* What the structs of regions, counters and markers begin with; a domain may be NULL. */
#define SONDE_NAMED_HEAD PyObject_HEAD PyObject *name, *domain; sonde_sub *sub; /* NULL: of the main interpreter */

typedef struct {
    SONDE_NAMED_HEAD
} sonde_named;

/* Make an object of a subtype of Named; `domain` may be None. NULL with an exception. */
PyObject *sonde_named_new(PyTypeObject *type, PyObject *name, PyObject *domain);
/* Free an object of such a type, whose references were dropped. */
void sonde_named_free(PyObject *object);
PyObject *sonde_named_parse(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* Without a GIL, the first look at a text may wait for another thread, which ends our turn: so names
 * are looked at when they are given. */
static inline void sonde_name_prepare(PyObject *name)
{
#ifdef Py_GIL_DISABLED
    if (PyUnicode_Check(name) && !PyUnicode_IS_ASCII(name) && PyUnicode_AsUTF8(name) == NULL)
        PyErr_Clear(); /* lone surrogates: see text.c */
#else
    (void)name;
#endif
}

/* Return low, high, mean and last of the counter whose sum has this index: in this process whole
 * numbers are exact. */
PyObject *sonde_count_values(uint64_t at, const sonde_sum *sum, double mean);

/* Rows as they lie in the rings; their columns are those of tables/event.py. */
typedef struct {
    int64_t t_ns, dur_ns;
    uint32_t name, domain, kind, pad0;
    int64_t id, parent;
    int32_t thread, end_thread;
    int64_t paused_ns;
    uint32_t cut, pad1;
    int64_t number;
    uint32_t error, interpreter;
} sonde_span_row;

typedef struct {
    int64_t t_ns;
    uint32_t name, domain;
    double value;
    int64_t whole;
    int32_t thread;
    uint32_t interpreter;
} sonde_counter_row;

typedef struct {
    int64_t t_ns;
    uint32_t name, domain, scope, pad0;
    int64_t id, parent;
    int32_t thread;
    uint32_t interpreter;
} sonde_marker_row;

typedef struct {
    int64_t t_ns, id;
    uint32_t key, pad0;
    double number;
    int64_t whole;
    uint32_t text, pad1;
} sonde_attribute_row;

#define SONDE_SPAN_KINDS "qqtttqqiiqtqtI"
#define SONDE_COUNTER_KINDS "qttdqiI"
#define SONDE_MARKER_KINDS "qtttqqiI"
#define SONDE_ATTRIBUTE_KINDS "qqtdqt"
_Static_assert(sizeof(sonde_span_row) == 88, "span row");
_Static_assert(offsetof(sonde_span_row, id) == 32, "span row");
_Static_assert(offsetof(sonde_span_row, number) == 72, "span row");
_Static_assert(sizeof(sonde_counter_row) == 40, "counter row");
_Static_assert(sizeof(sonde_marker_row) == 48, "marker row");
_Static_assert(sizeof(sonde_attribute_row) == 48, "attribute row");

/* What is NULL in a row: a bit for each column that may be. */
enum { SPAN_DOMAIN = 1, SPAN_PARENT = 2, SPAN_CUT = 4, SPAN_NUMBER = 8, SPAN_ERROR = 16 };
enum { COUNTER_DOMAIN = 1, COUNTER_WHOLE = 2 };
enum { MARKER_DOMAIN = 1, MARKER_PARENT = 2 };
enum { ATTRIBUTE_NUMBER = 1, ATTRIBUTE_WHOLE = 2, ATTRIBUTE_TEXT = 4 };

/* The low bits of a region's number are its slot among the open regions; 0: it has no slot. */
#define SONDE_SLOT_BITS 13
_Static_assert(1u << SONDE_SLOT_BITS == SONDE_TOTALS_OPEN, "a slot in a number");

/* One recording at a time, as there is one process. Subinterpreters read it, and change sums, slots and
 * numbers, while they hold the lock of kernel/sub_lock.h; the main interpreter changes it with its GIL,
 * and takes the lock where they could see it. */
typedef struct {
    sonde_totals *totals;   /* NULL: not recording, or no event so far */
    const uint32_t *on; /* in the control page; never NULL */
    uint32_t is_open;   /* does the program want its events recorded? */
    uint32_t epoch;     /* of the recording; 0: none. Numbers are never reused */
    sonde_control *page;
    PyObject *text, *totals_map, *page_map;
    PyObject *opener;               /* makes `totals` at the first event */
    PyObject *tables[EVENT_TABLES]; /* writers; kept for the first event of a forked child */
    PyObject *mirror;
    PyObject *current; /* context variable: the number of the innermost region; 0: none */
    int64_t last_serial;
    uint32_t regions;       /* activations on the heap */
    int64_t gate_open_ns;   /* when it last opened */
    int64_t gate_closed_ns; /* when it last closed; 0: never */
    int64_t gate_paused_ns; /* how long it was closed while the page was on, before it last opened */
    int64_t gate_page_ns;   /* all pauses of the page, when it last closed */
} sonde_events_t;

extern sonde_events_t sonde_events;

/* Without a GIL, every way in from Python takes its turn here: all of the above, the sums, the slots
 * and the activations of all regions change only in turn. */
extern sonde_exclusion sonde_events_turn;

static inline int sonde_events_on(void)
{
    return sonde_events.totals != NULL && sonde_load_relaxed(sonde_events.on) && sonde_events.is_open;
}

/* Are events recorded now? If all that is missing is a first event, make room for it. */
int sonde_events_wake(void);

/* The same as sonde_events_wake(), but quick while nothing is recorded. In a subinterpreter,
 * sonde_sub_enter() has made the room. */
static inline int sonde_events_ready(const sonde_sub *sub)
{
    if (sonde_events.totals != NULL)
        return sonde_load_relaxed(sonde_events.on) && sonde_events.is_open;
    return sub == NULL && sonde_events.tables[TO_SPAN] != NULL && sonde_events_wake();
}

/* Write nowhere from now on; also called in a forked child. */
void sonde_events_forget(void);

/* Begin the sums anew. */
void sonde_events_begin_sums(void);

/* Return the length of all pauses of the control page up to now. */
int64_t sonde_events_page_paused_ns(int64_t now);

/* Return the length of all time up to now in which nothing was recorded although there is a
 * recording. */
int64_t sonde_events_paused_ns(int64_t now);

/* Return when recording last went on, and when it last went off. */
int64_t sonde_events_resumed_ns(void);
int64_t sonde_events_stopped_ns(void);

/* Return the number of the next event, which contains its slot. */
int64_t sonde_events_number(uint32_t slot);

/* Return the number of the next event, which has no slot, wherever this runs. */
static inline int64_t sonde_events_take_number(const sonde_sub *sub)
{
    int is_held = sonde_subs_hold(sub);
    int64_t number = sonde_events_number(0);
    sonde_subs_let(is_held);
    return number;
}

/* Return text ids for a row of one of the tables; 0 if there is nothing to name, or no room
 * (counted there). */
uint32_t sonde_events_text(sonde_sub *sub, int table, PyObject *str);
uint32_t sonde_events_value(sonde_sub *sub, PyObject *str); /* of an attribute */
uint32_t sonde_events_word(const sonde_sub *sub, const char *word); /* one of ours, of at most 15 letters */

/* Write a row. Returns 0, or -1 with an exception raised while the ring was made. */
static inline int sonde_events_put(const sonde_sub *sub, int table, const void *row, uint32_t nulls)
{
    if (sub == NULL)
        return sonde_writer_put(sonde_events.tables[table], row, nulls);
    sonde_sub_put(table, row, nulls);
    return 0;
}

/* Return the sum of a kind, domain and name; NULL if there is no room (counted). Valid until the
 * epoch changes. */
sonde_sum *sonde_events_sum(uint32_t kind, uint32_t domain, uint32_t name);

/* Take and give back slots of open regions; 0 if none is free. A slot that is given back as
 * `late` is not reused soon. */
uint32_t sonde_slot_take(void);
void sonde_slot_give(uint32_t slot, int late);
void sonde_slots_reset(void);

/* Note the context in which the region of a slot was begun; NULL: the thread's own. */
void sonde_slot_begin(uint32_t slot, const void *context);

/* Return the innermost region that is still open, from this one up; 0: none. */
int64_t sonde_region_resolve(int64_t id);

/* Return the innermost region here, as it was last set; 0: none. */
int64_t sonde_region_current(const sonde_sub *sub, const sonde_event_place *here);
void sonde_region_set_current(const sonde_sub *sub, const sonde_event_place *here, int64_t id);

/* Return the parent of a region that begins where `outer` is the innermost one; 0: none. A task
 * may begin after the region in which it was made has ended: that region is still its parent. */
int64_t sonde_region_around(const sonde_event_place *here, int64_t outer);
int64_t sonde_region_here(const sonde_sub *sub);

/* Write attributes: `keys` is a tuple of names, with a value for each. */
int sonde_attributes_put(sonde_sub *sub, int64_t id, int64_t t_ns, PyObject *keys, PyObject *const *values);

/* Return a value in a form that may be kept for long: plain numbers and texts as they are,
 * anything else as the name of its type. A new reference; NULL with an exception. */
PyObject *sonde_attribute_plain(PyObject *value);

/* Convert a Python number to what rows hold. Returns 0, or -1 with an exception if it is not a
 * number. */
int sonde_number(PyObject *value, double *number, int64_t *whole, int *is_whole);

/* Pass the event on to the mirror, if there is one. `value` is the value of a counter, the scope
 * of a marker, or the name of the exception that ended a region; at the beginning of a region,
 * its parent and attributes, if given. Returns 0, or -1 with an exception that belongs to the
 * program. */
int sonde_events_mirror(const char *what, PyObject *domain, PyObject *name, uint32_t kind,
                        int64_t id, PyObject *value);

/* What Python calls, in read.c and marker.c. */
PyObject *sonde_events_summary(PyObject *module, PyObject *none);
PyObject *sonde_totals_read(PyObject *module, PyObject *args);
PyObject *sonde_mark_now(PyObject *module, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *sonde_sub_mark_now(PyObject *module, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);

extern const char *const sonde_kind_names[SONDE_EVENT_KINDS];

#endif
