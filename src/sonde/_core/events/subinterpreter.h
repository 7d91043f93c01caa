/* Events of subinterpreters: they write to the rings of the process, and share no Python object with
 * the main interpreter. Needs the GIL of the subinterpreter. */
#ifndef SONDE_SUBINTERPRETER_H
#define SONDE_SUBINTERPRETER_H

#include "binding/binding.h"
#include "kernel/sub_lock.h"

enum { TO_SPAN, TO_COUNTER, TO_MARKER, TO_ATTRIBUTE, EVENT_TABLES };

enum { SONDE_SUB_TEXTS = 256 };

/* A subinterpreter: the state of its module. Objects of its types keep the module alive. */
typedef struct {
    uint32_t number;
    PyObject *current;       /* context variable: the number of the innermost region */
    int collects;            /* with the lock: was the garbage collector on? */
    PyTypeObject *region_type, *emit_type; /* borrowed: the module has them for as long as it lives */
    /* Ids of texts in the recording with this epoch, by the address of the str, which is kept alive. */
    struct { PyObject *str; uint32_t id, epoch; } texts[SONDE_SUB_TEXTS];
} sonde_sub;

/* Return the subinterpreter to which a type belongs; NULL: the main interpreter. */
sonde_sub *sonde_sub_of(PyTypeObject *type);

static inline uint32_t sonde_sub_number(const sonde_sub *sub) { return sub == NULL ? 0 : sub->number; }

/* Take the lock, after having the rings of these tables (a bit for each) made if that is due. The main
 * interpreter (NULL) needs neither. */
void sonde_sub_take(sonde_sub *sub, unsigned tables);
void sonde_sub_give(const sonde_sub *sub);

static inline void sonde_sub_enter(sonde_sub *sub, unsigned tables)
{
    if (sub != NULL)
        sonde_sub_take(sub, tables);
}

static inline void sonde_sub_leave(const sonde_sub *sub)
{
    if (sub != NULL)
        sonde_sub_give(sub);
}

/* Call this as a thread of the main interpreter, which may have to wait for its GIL. At the end of the
 * process, when a thread that wants this GIL is ended, do nothing. Without the lock. */
void sonde_sub_visit(void (*call)(void *argument), void *argument);

/* The rings as the writers of the main interpreter have lent them. */
extern sonde_lent_ring sonde_lent[EVENT_TABLES];

/* With the lock: append a row; it is dropped if there was no room for its ring. */
void sonde_sub_put(int table, const void *row, uint32_t nulls);

/* With the lock: count a text that found no room. */
void sonde_sub_lose_text(int table);

/* Make this known as the module of a subinterpreter. Returns 0, or -1 with an exception. */
int sonde_sub_begin(sonde_sub *sub);

/* The type of what writes rows to a table of the program, and what Python calls (subinterpreter_table.c). */
extern PyType_Spec sonde_sub_emit;
PyObject *sonde_sub_open_table(PyObject *module, PyObject *args);
PyObject *sonde_sub_end_step(PyObject *module, PyObject *none);

#endif
