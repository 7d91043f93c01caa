/* The events of this process: on or off, pauses, numbers, sums. See events.h. */
#include "events/events.h"
#include "kernel/fork.h"

#include <string.h>

static const uint32_t never = 0;

sonde_exclusion sonde_events_turn = SONDE_EXCLUSION;

SONDE_CHANGED_IN_CHILD sonde_events_t sonde_events = {.on = &never, .is_open = 1};

const char *const sonde_kind_names[SONDE_EVENT_KINDS] = {"span",  "task",    "frame",
                                                         "event", "counter", "marker"};

/* ---- sums, and where to find them ------------------------------------------------ */

enum { INDEX = 2 * SONDE_TOTALS_SUMS };
static uint16_t sum_index[INDEX]; /* index of a sum, plus 1; 0: free */
static uint64_t sums_used;

sonde_sum *sonde_events_sum(uint32_t kind, uint32_t domain, uint32_t name)
{
    sonde_totals *totals = sonde_events.totals;
    uint64_t hash = ((uint64_t)name << 32 | (domain << 3 | kind)) * 0x9e3779b97f4a7c15u;
    /* Never more than half full. */
    for (uint32_t at = (uint32_t)(hash >> 40) % INDEX;; at = (at + 1) % INDEX) {
        if (sum_index[at] == 0) {
            if (sums_used >= SONDE_TOTALS_SUMS) {
                totals->sums_lost++;
                return NULL;
            }
            sum_index[at] = (uint16_t)++sums_used;
            sonde_sum *sum = sonde_totals_sum(totals, sums_used - 1);
            sonde_sum_begin(sum);
            /* This entry may have belonged to another name before the sums were reset. */
            memset((char *)sum + sizeof sum->seq, 0, sizeof *sum - sizeof sum->seq);
            sum->kind = kind;
            sum->domain = domain;
            sum->name = name;
            sum->since_ns = sonde_clock_ns();
            sonde_sum_end(sum);
            /* Release: the entry is written before the number that says it is there. */
            sonde_store_release(&totals->used, sums_used);
            return sum;
        }
        sonde_sum *sum = sonde_totals_sum(totals, sum_index[at] - 1u);
        if (sum->name == name && sum->domain == domain && sum->kind == kind)
            return sum;
    }
}

/* ---- on, off, pauses ------------------------------------------------------------- */

static void forget(void)
{
    sonde_events.totals = NULL;
    sonde_events.on = &never;
    sonde_events.page = NULL;
    sonde_events.epoch = 0;
}

SONDE_IN_CHILD(forget) /* no other thread is there, whoever held the lock */

void sonde_events_forget(void)
{
    int is_held = sonde_subs_hold(NULL);
    forget();
    sonde_subs_let(is_held);
}

void sonde_events_begin_sums(void)
{
    memset(sum_index, 0, sizeof sum_index);
    sums_used = 0;
    if (sonde_events.totals != NULL)
        sonde_store_release(&sonde_events.totals->used, 0);
}

int sonde_events_wake(void)
{
    if (!sonde_events.is_open)
        return 0;
    if (sonde_events.epoch == 0) {
        /* In a new child process the first event begins the recording. */
        if (sonde_events.tables[TO_SPAN] == NULL || sonde_writer_open(sonde_events.tables[TO_SPAN]) < 0)
            PyErr_Clear();
        if (sonde_events.epoch == 0)
            return 0;
    }
    if (!sonde_load_relaxed(sonde_events.on))
        return 0;
    if (sonde_events.totals == NULL && sonde_events.opener != NULL) {
        PyObject *opener = Py_NewRef(sonde_events.opener);
        PyObject *result = PyObject_CallNoArgs(opener);
        Py_DECREF(opener);
        if (result == NULL)
            PyErr_Clear();
        Py_XDECREF(result);
        if (sonde_events.totals == NULL)
            sonde_events.on = &never; /* there is no room, so do not try again and again */
    }
    return sonde_events_on();
}

int64_t sonde_events_page_paused_ns(int64_t now)
{
    const sonde_control *page = sonde_events.page;
    if (page == NULL)
        return 0;
    int64_t sum = sonde_load_relaxed(&page->paused_ns);
    if (!sonde_load_relaxed(&page->on))
        sum += now - sonde_load_relaxed(&page->paused_t_ns);
    return sum;
}

int64_t sonde_events_paused_ns(int64_t now)
{
    /* Time in which both are off counts once: of the program's own pause, only what the page does
     * not count. */
    if (sonde_events.is_open)
        return sonde_events.gate_paused_ns + sonde_events_page_paused_ns(now);
    return sonde_events.gate_paused_ns + sonde_events.gate_page_ns + now - sonde_events.gate_closed_ns;
}

int64_t sonde_events_resumed_ns(void)
{
    int64_t page = sonde_load_relaxed(&sonde_events.page->resumed_t_ns);
    return page > sonde_events.gate_open_ns ? page : sonde_events.gate_open_ns;
}

int64_t sonde_events_stopped_ns(void)
{
    int is_on = sonde_load_relaxed(&sonde_events.page->on) != 0;
    int64_t page = sonde_load_relaxed(&sonde_events.page->paused_t_ns);
    int64_t gate = sonde_events.gate_closed_ns;
    /* Of the page and the gate, the one that is off now counts; if both are, the one that was off
     * first. */
    if (is_on)
        return gate;
    return sonde_events.is_open || page < gate ? page : gate;
}

int64_t sonde_events_number(uint32_t slot)
{
    return ++sonde_events.last_serial << SONDE_SLOT_BITS | slot;
}

/* ---- what subinterpreters write ---------------------------------------------------- */

sonde_lent_ring sonde_lent[EVENT_TABLES];

void sonde_sub_put(int table, const void *row, uint32_t nulls)
{
    if (sonde_lent[table].ring.shared != NULL)
        (void)sonde_ring_append(&sonde_lent[table].ring, row, nulls); /* a drop is counted there */
}

void sonde_sub_lose_text(int table)
{
    if (sonde_lent[table].ring.shared != NULL)
        sonde_add_relaxed(&sonde_lent[table].ring.shared->text_lost, 1);
}

/* ---- texts ----------------------------------------------------------------------- */

/* The same in a subinterpreter, which has a cache of its own. */
static uint32_t put_sub_text(sonde_sub *sub, int table, PyObject *str, enum sonde_text_share share)
{
    size_t at = ((uintptr_t)str >> 4 ^ (uintptr_t)str >> 12) % SONDE_SUB_TEXTS;
    if (sonde_events.totals == NULL)
        return 0;
    if (sub->texts[at].str == str && sub->texts[at].epoch == sonde_events.epoch)
        return sub->texts[at].id;
    int64_t id = sonde_text_put(sonde_text_table(sonde_events.text), str, share);
    if (id < 0)
        PyErr_Clear();
    if (id <= 0) {
        sonde_sub_lose_text(table);
        return 0;
    }
    if (PyUnicode_CheckExact(str) && PyUnicode_GET_LENGTH(str) <= 4096) {
        Py_XSETREF(sub->texts[at].str, Py_NewRef(str));
        sub->texts[at].id = (uint32_t)id;
        sub->texts[at].epoch = sonde_events.epoch;
    }
    return (uint32_t)id;
}

static uint32_t put_text(sonde_sub *sub, int table, PyObject *str, enum sonde_text_share share)
{
    if (str == NULL || str == Py_None)
        return 0;
    if (sub != NULL)
        return put_sub_text(sub, table, str, share);
    /* Making a ring runs Python: the recording may have ended meanwhile. */
    if (sonde_events.text == NULL)
        return 0;
    int64_t id = sonde_text_id_within(sonde_events.text, str, share);
    if (id < 0)
        PyErr_Clear();
    if (id <= 0)
        sonde_writer_lose_text(sonde_events.tables[table]);
    return id < 0 ? 0 : (uint32_t)id;
}

uint32_t sonde_events_text(sonde_sub *sub, int table, PyObject *str)
{
    return put_text(sub, table, str, SONDE_TEXTS_NAMES);
}

uint32_t sonde_events_value(sonde_sub *sub, PyObject *str)
{
    return put_text(sub, TO_ATTRIBUTE, str, SONDE_TEXTS_VALUES);
}

uint32_t sonde_events_word(const sonde_sub *sub, const char *word)
{
    /* There are few words, and each row needs one: they are remembered by the address of the
     * literal. */
    enum { WORDS = 32 };
    static struct { const char *word; uint32_t id, epoch; } known[WORDS];
    size_t at = ((uintptr_t)word >> 2) % WORDS;
    if (sub != NULL)
        return sonde_events.totals == NULL ? 0
                                           : sonde_intern_put(sonde_text_table(sonde_events.text), word,
                                                              (uint32_t)strlen(word));
    if (sonde_events.text == NULL)
        return 0;
    if (known[at].word != word || known[at].epoch != sonde_events.epoch) {
        known[at].word = word;
        known[at].epoch = sonde_events.epoch;
        known[at].id = sonde_intern_put(sonde_text_table(sonde_events.text), word,
                                        (uint32_t)strlen(word));
    }
    return known[at].id;
}

/* ---- mirror ---------------------------------------------------------------------- */

/* Return one of our words as a str, made once. Borrowed; NULL with an exception. */
static PyObject *word_object(const char *word)
{
    enum { WORDS = 16 };
    static struct { const char *word; PyObject *str; } known[WORDS];
    for (int at = 0; at < WORDS; at++) {
        if (known[at].word == NULL) {
            known[at].str = PyUnicode_InternFromString(word);
            known[at].word = known[at].str == NULL ? NULL : word;
        }
        if (known[at].word == NULL || strcmp(known[at].word, word) == 0)
            return known[at].str;
    }
    return NULL; /* there are ten of them */
}

int sonde_events_mirror(const char *what, PyObject *domain, PyObject *name, uint32_t kind,
                        int64_t id, PyObject *value)
{
    if (sonde_events.mirror == NULL)
        return 0;
    PyObject *args[] = {word_object(what),  domain ? domain : Py_None,
                        name,               word_object(sonde_kind_names[kind]),
                        PyLong_FromLongLong(id), value ? value : Py_None};
    PyObject *result = NULL;
    if (args[0] != NULL && args[3] != NULL && args[4] != NULL) {
        PyObject *mirror = Py_NewRef(sonde_events.mirror);
        result = PyObject_Vectorcall(mirror, args, 6, NULL);
        Py_DECREF(mirror);
    }
    Py_XDECREF(args[4]);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}
