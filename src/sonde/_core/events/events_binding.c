/* How Python switches the recording of events on and off, and asks for what they add up to. */
#include "events/events.h"

static void detach(void)
{
    sonde_events_forget();
    Py_CLEAR(sonde_events.opener);
    Py_CLEAR(sonde_events.text);
    Py_CLEAR(sonde_events.totals_map);
    Py_CLEAR(sonde_events.page_map);
}

static PyObject *events_detach(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    detach();
    SONDE_EXCLUDE_END
    Py_RETURN_NONE;
}

static PyObject *events_attach(PyObject *Py_UNUSED(module), PyObject *args)
{
    static uint32_t epochs;
    static const char *const kinds[EVENT_TABLES] = {SONDE_SPAN_KINDS, SONDE_COUNTER_KINDS,
                                                    SONDE_MARKER_KINDS, SONDE_ATTRIBUTE_KINDS};
    PyObject *tables[EVENT_TABLES], *text, *page_map, *opener;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O", &sonde_WriterType, &tables[0], &sonde_WriterType,
                          &tables[1], &sonde_WriterType, &tables[2], &sonde_WriterType, &tables[3],
                          &sonde_TextType, &text, &sonde_MapType, &page_map, &opener))
        return NULL;
    sonde_control *page = sonde_map_memory(page_map, 0);
    if (page == NULL)
        return NULL;
    for (int i = 0; i < EVENT_TABLES; i++)
        if (sonde_writer_is(tables[i], kinds[i]) < 0)
            return NULL;
    if (sonde_events.current == NULL &&
        (sonde_events.current = PyContextVar_New("sonde_region", NULL)) == NULL)
        return NULL;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    detach();
    for (int i = 0; i < EVENT_TABLES; i++)
        Py_XSETREF(sonde_events.tables[i], Py_NewRef(tables[i]));
    int is_held = sonde_subs_hold(NULL);
    sonde_events.text = Py_NewRef(text);
    sonde_events.page_map = Py_NewRef(page_map);
    sonde_events.opener = Py_NewRef(opener);
    sonde_events.page = page;
    sonde_events.on = &page->on;
    sonde_events.epoch = ++epochs;
    sonde_events.gate_page_ns = sonde_events_page_paused_ns(sonde_clock_ns());
    sonde_subs_let(is_held);
    SONDE_EXCLUDE_END
    Py_RETURN_NONE;
}

/* Write the pauses into the file, whose readers need them, too. */
static void tell_gate(void)
{
    sonde_totals *totals = sonde_events.totals;
    int is_open = sonde_events.is_open != 0;
    if (totals == NULL)
        return;
    sonde_store_relaxed(&totals->paused_ns,
                        sonde_events.gate_paused_ns + (is_open ? 0 : sonde_events.gate_page_ns));
    sonde_store_release(&totals->closed_ns, is_open ? 0 : sonde_events.gate_closed_ns);
}

static PyObject *events_totals(PyObject *Py_UNUSED(module), PyObject *map)
{
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return NULL;
    int status = sonde_totals_init(mem, ((MapObject *)map)->bytes);
    if (status < 0)
        return sonde_raise(status, "event.totals");
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    int is_held = sonde_subs_hold(NULL);
    sonde_events.totals = mem;
    tell_gate();
    sonde_events_begin_sums();
    sonde_slots_reset();
    sonde_subs_let(is_held);
    Py_XSETREF(sonde_events.totals_map, Py_NewRef(map));
    SONDE_EXCLUDE_END
    Py_RETURN_NONE;
}

static PyObject *events_gate(PyObject *Py_UNUSED(module), PyObject *open)
{
    int is_open = PyObject_IsTrue(open);
    if (is_open < 0)
        return NULL;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    int is_held = sonde_subs_hold(NULL);
    int64_t now = sonde_clock_ns();
    if (is_open && !sonde_events.is_open) {
        sonde_events.gate_paused_ns = sonde_events_paused_ns(now) - sonde_events_page_paused_ns(now);
        sonde_events.gate_open_ns = now;
    } else if (!is_open && sonde_events.is_open) {
        sonde_events.gate_closed_ns = now;
        sonde_events.gate_page_ns = sonde_events_page_paused_ns(now);
    }
    sonde_events.is_open = (uint32_t)is_open;
    tell_gate();
    sonde_subs_let(is_held);
    SONDE_EXCLUDE_END
    Py_RETURN_NONE;
}

static PyObject *events_reset(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    int is_held = sonde_subs_hold(NULL);
    sonde_events_begin_sums();
    sonde_subs_let(is_held);
    SONDE_EXCLUDE_END
    Py_RETURN_NONE;
}

static PyObject *set_mirror(PyObject *Py_UNUSED(module), PyObject *call)
{
    PyObject *before;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    before = sonde_events.mirror;
    sonde_events.mirror = call == Py_None ? NULL : Py_NewRef(call);
    SONDE_EXCLUDE_END
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

PyMethodDef sonde_events_methods[] = {
    {"events_attach", events_attach, METH_VARARGS,
     "events_attach(span, counter, marker, attribute, text, page, opener): record events there; the\n"
     "opener calls events_totals() at the first one."},
    {"events_totals", events_totals, METH_O, "events_totals(map): keep sums and open regions in this."},
    {"events_detach", events_detach, METH_NOARGS, "Record no events."},
    {"events_gate", events_gate, METH_O, "events_gate(open): start or stop recording the program's events."},
    {"events_reset", events_reset, METH_NOARGS, "Reset the sums to zero."},
    {"events_mirror", set_mirror, METH_O,
     "events_mirror(call): call this at each event, with what, domain, name, kind, id, value."},
    {"events_summary", sonde_events_summary, METH_NOARGS,
     "Return the sums: (kind, domain, name, count, total_ns, min_ns, max_ns, min, max, mean, last, since)."},
    {"totals_read", sonde_totals_read, METH_VARARGS,
     "totals_read(map, until_ns, paused_ns): return (sums, open regions, damaged) of event.totals, with\n"
     "texts as ids."},
    {"mark", (PyCFunction)(void (*)(void))sonde_mark_now, METH_FASTCALL | METH_KEYWORDS,
     "mark(name, /, **attributes): mark this moment."},
    {NULL, NULL, 0, NULL},
};
